"""Who averages TensorFlow's gradients over the ranks: our own path over MPI, or Horovod over MPI or gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf
from mpi4py import MPI

from hidl_workloads import horovod_world
from hidl_workloads.data_parallel.tensorflow_gradients import GradientAverager, broadcast
from hidl_workloads.resnet50.parameters import Parameters

#: Computes this rank's loss; the tape watches.
Loss = Callable[[], tf.Tensor]


class Backend(Protocol):
    """A training step together with all ranks, from equal weights; ``versions``: of the libraries that were added."""

    versions: dict[str, str]

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""

    def close(self) -> None:
        """Give back what was taken; every rank calls this."""


def make(communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Parameters) -> Backend:
    """The backend that the parameters name; every rank calls this."""
    maker = _OverMPI if parameters.backend == "mpi4py" else _Horovod
    return maker(communicator, model, optimizer, loss, parameters)


class _OverMPI:
    """See ``Backend``; the gradients leave TensorFlow between two functions."""

    def __init__(self, communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Parameters) -> None:
        self.versions: dict[str, str] = {}
        self._model, self._optimizer, self._loss = model, optimizer, loss
        broadcast(communicator, model)
        self._averager = GradientAverager(communicator, model.trainable_variables, int(parameters.bucket_mib * 2**20))
        self._forward_backward = tf.function(self._trace_forward_backward)
        self._apply = tf.function(self._trace_apply)

    def step(self) -> float:
        loss, gradients = self._forward_backward()
        self._apply(self._averager.average(gradients))
        return float(loss)

    def close(self) -> None:
        self._averager.close()

    def _trace_forward_backward(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = self._loss()
        return loss, self._averager.backward(tape, loss)

    def _trace_apply(self, gradients: list[tf.Tensor]) -> None:
        self._optimizer.apply(self._averager.restore(gradients), self._model.trainable_variables)


class _Horovod:
    """See ``Backend``; one function, in which Horovod's operations are nodes. gloo is Horovod's second controller."""

    def __init__(self, communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Parameters) -> None:
        import horovod
        import horovod.tensorflow as hvd

        horovod_world.configure(
            cycle_time_ms=parameters.cycle_time_ms, fusion_mib=parameters.fusion_mib, timeline=parameters.timeline
        )
        horovod_world.init(hvd, communicator, "gloo" if parameters.backend == "gloo" else "mpi")
        hvd.broadcast_variables(model.variables, root_rank=0)
        self.versions = {"horovod": horovod.__version__}
        self._model, self._optimizer, self._loss = model, optimizer, loss
        self._hvd = hvd
        self._train = tf.function(self._trace)

    def step(self) -> float:
        return float(self._train())

    def close(self) -> None:
        self._hvd.shutdown()

    def _trace(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self._loss()
        gradients = self._hvd.DistributedGradientTape(tape).gradient(loss, self._model.trainable_variables)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        return loss

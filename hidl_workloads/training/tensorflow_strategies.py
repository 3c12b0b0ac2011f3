"""Strategies that average TensorFlow's gradients: data_parallel over MPI, or Horovod over MPI or gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf
from mpi4py import MPI

from hidl_workloads.parameters import Training
from hidl_workloads.refusal import Refused
from hidl_workloads.training import horovod_world
from hidl_workloads.training.data_parallel.keras_optimizer import DistributedOptimizer, prepare
from hidl_workloads.training.data_parallel.tensorflow_gradients import broadcast

#: Computes this rank's loss while the gradient tape records.
Loss = Callable[[], tf.Tensor]


class TensorFlowStrategy(Protocol):
    """A training step together with all ranks, from equal weights; ``versions``: of the libraries that were added.

    ``path`` and ``path_reason``: as ``Trainer`` has them.
    """

    versions: dict[str, str]
    path: str
    path_reason: str

    def step(self) -> float:
        """Train one step; returns the loss of this rank's batch."""

    def close(self) -> None:
        """Release communicators and buffers; collective."""


def make(communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Training) -> TensorFlowStrategy:
    """Return the strategy of the backend that the parameters name; collective."""
    maker = _TensorFlowOverMPI if parameters.backend == "mpi4py" else _TensorFlowHorovod
    return maker(communicator, model, optimizer, loss, parameters)


class _TensorFlowOverMPI:
    """``hidl_workloads.training.data_parallel``: one function, which calls MPI from within."""

    def __init__(self, communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Training) -> None:
        self.versions: dict[str, str] = {}
        self._model, self._loss = model, loss
        self._optimizer = DistributedOptimizer(
            optimizer,
            communicator,
            bucket_bytes=int(parameters.bucket_mib * 2**20),
            compression=parameters.compression,
            gpu_buffers=parameters.gpu_buffers,
        )
        try:
            path = prepare(self._optimizer, model.trainable_variables)
        except ValueError as error:
            raise Refused(str(error)) from error
        self.path: str = path.name if path else ""
        self.path_reason: str = path.reason if path else ""
        broadcast(communicator, model)
        self._train = tf.function(self._trace)

    def step(self) -> float:
        return float(self._train())

    def close(self) -> None:
        """Do nothing: the communicator lives as long as the optimizer."""

    def _trace(self) -> tf.Tensor:
        weights = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss()
        self._optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        return loss


class _TensorFlowHorovod:
    """One function, in which Horovod's operations are nodes. gloo is Horovod's second controller."""

    def __init__(self, communicator: MPI.Comm, model: Any, optimizer: Any, loss: Loss, parameters: Training) -> None:
        import horovod
        import horovod.tensorflow as hvd

        horovod_world.configure(
            cycle_time_ms=parameters.cycle_time_ms, fusion_mib=parameters.fusion_mib, timeline=parameters.timeline
        )
        horovod_world.init(hvd, communicator, "gloo" if parameters.backend == "gloo" else "mpi")
        hvd.broadcast_variables(model.variables, root_rank=0)
        self.versions = {"horovod": horovod.__version__}
        self.path = self.path_reason = ""
        self._model, self._optimizer, self._loss = model, optimizer, loss
        self._hvd = hvd
        self._compression = hvd.Compression.fp16 if parameters.compression == "float16" else hvd.Compression.none
        self._train = tf.function(self._trace)

    def step(self) -> float:
        return float(self._train())

    def close(self) -> None:
        self._hvd.shutdown()

    def _trace(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self._loss()
        gradients = self._hvd.DistributedGradientTape(tape, compression=self._compression).gradient(
            loss, self._model.trainable_variables
        )
        self._optimizer.apply(gradients, self._model.trainable_variables)
        return loss

"""One rank's model, plan, engine and data."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hyparflow
import keras
import numpy as np
import tensorflow as tf
from hyparflow.engine.engine import Batch, Options
from hyparflow.training.recorder import Recorder
from hyparflow.training.session import Session
from hyparflow.training.sessions import plan_together
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.hyparflow.gpu_messages import GpuMemory
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.hyparflow.model import build_model
from hidl_workloads.hyparflow.models import CLASSES, SHAPE
from hidl_workloads.metrics import METRICS_FILE, Metric
from hidl_workloads.parameters import Hyparflow
from hidl_workloads.refusal import Refused
from hidl_workloads.tensorflow_device import choose_device, device_metrics
from hidl_workloads.tensorflow_threads import set_threads
from hidl_workloads.training.data_parallel.gpu_path import Path, choose_path
from hidl_workloads.training.data_parallel.tensorflow_devices import TensorFlowGpu

_RECOMPUTE = {"auto": "auto", "always": True, "never": False}

#: The phases in which a rank computes; in the rest of a step, it waits.
_BUSY = ("forward", "backward", "update")
_RECORDED = 20  # maximum number of steps in a timeline; more would be unreadable


@dataclass(frozen=True)
class Step:
    """One rank's measurements of a step: its part of the replica's loss, in nats, and its computing time in seconds."""

    loss: float
    busy: float


class PartitionedTrainer:
    """A model that is trained in partitions and replicas; every rank makes one, and every rank calls its methods."""

    def __init__(self, communicator: MPI.Comm, parameters: Hyparflow, make: Callable[[], Any]) -> None:
        """``make``: the model. Raises ``Refused`` on all ranks where these cannot train it as was asked."""
        set_threads()
        self._place, self.device = choose_device(communicator)
        self.versions = {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "hyparflow": hyparflow.__version__,
        }
        with tf.device(self._place):
            model = build_model(parameters, make)
            self.parameter_count = model.count_params()
            self.plan = _plan(communicator, model, parameters)
            messages = None
            self.path: Path | None = None
            if self._place is not None and communicator.size > 1:
                gpu = TensorFlowGpu(self._place)
                self.path = _path(communicator, gpu, self.plan, parameters)
                messages = GpuMemory(gpu) if self.path.name == "gpu-aware" else None
            options = Options(parameters.batch_norm, trace=True, messages=messages)
            self._session = Session(model, self.plan, communicator, options)
        self._engine = self._session.engine
        self.replica = self._session.seat.replica
        self._batch = make_batch(parameters, self.replica)
        self._recorder = self._recorded(parameters) if parameters.timeline else None

    def step(self) -> Step:
        """Train one step."""
        with tf.device(self._place):
            result = self._engine.train_step(self._batch)
        if self._recorder is not None:
            self._recorder.step(self._engine.step, result)
        return Step(result.loss, sum(span.end - span.begin for span in result.spans if span.kind in _BUSY))

    def weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every trainable variable of this rank's stages, by name."""
        held = self._engine.variables
        names = {name for program in self._engine.programs.values() for name in program.trainable}
        for name in sorted(names):
            yield name, keras.ops.convert_to_numpy(held[name])

    def metrics(self) -> list[Metric]:
        """Return how messages and gradients get from GPU to GPU, and the peak memory of these; collective."""
        found = device_metrics(self._session.comm, self._place)
        if self.path is not None:
            paths = self._session.comm.allgather(self.path.name)
            found.insert(0, Metric("path", self.path.name, "messages", paths))
        return found

    def close(self) -> None:
        """Give back what was taken, and write what is not written yet."""
        if self._recorder is not None:
            self._recorder.close()
        self._session.close()

    def _recorded(self, parameters: Hyparflow) -> Recorder:
        """Return the recorder of the timed steps, which writes beside the metrics; draw the plan there."""
        beside = pathlib.Path(os.environ.get(METRICS_FILE, "metrics.json"))
        if self._session.comm.rank == 0:
            self.plan.draw(beside.with_name("plan.svg"))
        first = parameters.warmup + 1
        last = parameters.warmup + min(parameters.steps, _RECORDED)
        return Recorder(self._session, beside.with_name("timeline.json"), (first, last), None)


def make_batch(parameters: Hyparflow, replica: int) -> Batch:
    """A replica's synthetic images, (N, 32, 32, 3) of a normal distribution, and labels: others in each replica."""
    random = np.random.default_rng((parameters.seed, replica))
    images = random.standard_normal((parameters.batch, *SHAPE), np.float32)
    labels = random.integers(CLASSES, size=parameters.batch)
    kind = "float64" if parameters.precision == "float64" else "float32"
    return Batch((images.astype(kind, copy=False),), (labels,))


def _path(communicator: MPI.Comm, gpu: TensorFlowGpu, plan: hyparflow.Plan, parameters: Hyparflow) -> Path:
    """Return how messages get from GPU to GPU, and why so; collective."""
    if plan.partitions == 1:
        if parameters.gpu_buffers == "direct":
            raise Refused("gpu_buffers='direct' requires messages between stages, which require partitions")
        return Path("staged", "gradients are staged, and there are no messages")
    try:
        return choose_path(communicator, gpu, parameters.gpu_buffers, compressed=False)
    except ValueError as error:
        raise Refused(str(error)) from error


def _plan(communicator: MPI.Comm, model: Any, parameters: Hyparflow) -> hyparflow.Plan:
    """The plan, the same on all ranks."""
    partitions, replicas = divide_ranks(parameters, communicator.size)
    try:
        return plan_together(
            communicator,
            model,
            partitions=partitions,
            replicas=replicas,
            batch_size=parameters.batch * replicas,
            micro_batches=parameters.micro_batches or "auto",
            schedule=parameters.schedule,
            chunks=parameters.chunks,
            recompute=_RECOMPUTE[parameters.recompute],
            costs=parameters.costs,
            refinements=parameters.refinements,
            memory_limit=parameters.memory_limit * 2**20 or None,
        )
    except hyparflow.HyparflowError as error:
        raise Refused(str(error)) from error

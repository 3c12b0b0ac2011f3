"""One rank's model, plan, engine and data."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
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

from hidl_workloads.checkpoint import Checkpoint, Checkpoints, Snapshot, directory_of_checkpoints
from hidl_workloads.hyparflow.gpu_messages import GpuMemory
from hidl_workloads.hyparflow.layout import divide_ranks
from hidl_workloads.hyparflow.model import build_model
from hidl_workloads.hyparflow.models import CLASSES
from hidl_workloads.metrics import METRICS_FILE, Metric
from hidl_workloads.parameters import Hyparflow
from hidl_workloads.refusal import Refused
from hidl_workloads.tensorflow_device import choose_device, device_metrics
from hidl_workloads.tensorflow_threads import set_threads
from hidl_workloads.training import keras_checkpoint
from hidl_workloads.training.data_parallel.gpu_path import Path, choose_path
from hidl_workloads.training.data_parallel.tensorflow_devices import TensorFlowGpu

_RECOMPUTE = {"auto": "auto", "always": True, "never": False}

#: The phases in which a rank computes; in the rest of a step, it waits.
_BUSY = ("forward", "backward", "update")
_RECORDED = 20  # maximum number of steps in a timeline; more would be unreadable
#: Parameters that may change between two jobs of a training; the plan stays that of the first.
_ANY_VALUE = ("steps", "warmup", "note", "timeline")


@dataclass(frozen=True)
class Step:
    """One rank's measurements of a step: its part of the replica's loss, in nats, and its computing time in seconds."""

    loss: float
    busy: float


class PartitionedTrainer:
    """A model that is trained in partitions and replicas; every rank makes one, and every rank calls its methods."""

    def __init__(
        self, communicator: MPI.Comm, parameters: Hyparflow, make: Callable[[], Any], name: str = "hyparflow"
    ) -> None:
        """Build and plan the model, or continue from the newest checkpoint.

        Args:
            communicator: All ranks.
            parameters: The program's parameters.
            make: Returns the model.
            name: Name of the program, which checkpoints must have in common with it.

        Raises:
            Refused: On all ranks, if they cannot train the model as requested.
        """
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
            self.checkpoints = self._open(communicator, name, parameters)
            self.begun = None if self.checkpoints is None else self.checkpoints.newest(total_steps(parameters))
            self.plan = _plan(communicator, model, parameters, self.begun)
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
        if self.begun is not None:
            self._restore(self.begun)
        self._batch = make_batch(parameters, self.replica)
        self._recorder = self._recorded(parameters) if parameters.timeline else None

    def step(self) -> Step:
        """Train one step."""
        with tf.device(self._place):
            result = self._engine.train_step(self._batch)
        if self._recorder is not None:
            self._recorder.step(self._engine.step, result)
        return Step(result.loss, sum(span.end - span.begin for span in result.spans if span.kind in _BUSY))

    def snapshot(self, document: Mapping[str, Any]) -> Snapshot:
        """Return the state between two steps; ``document`` describes the steps so far."""
        shared, own = self._parts()
        return Snapshot(
            partial(keras_checkpoint.write, shared),
            partial(keras_checkpoint.write, own),
            {**document, "plan": self.plan.to_json()},
        )

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

    def _open(self, communicator: MPI.Comm, name: str, parameters: Hyparflow) -> Checkpoints | None:
        directory = directory_of_checkpoints()
        if directory is None:
            return None
        partitions, _ = divide_ranks(parameters, communicator.size)
        given = asdict(parameters) | {"partitions": partitions}
        return Checkpoints(
            communicator,
            directory,
            identity={
                "program": name,
                **{key: value for key, value in given.items() if key not in (*_ANY_VALUE, "gpu_buffers")},
                "weights": self.parameter_count,
            },
            versions={**self.versions, "device": self.device, "gpu_buffers": parameters.gpu_buffers},
        )

    def _parts(self) -> tuple[list[Any], list[Any]]:
        """Return the variables that are equal on all ranks, and this rank's own.

        With partitions, all are a rank's own; without, only the moving statistics are.
        """
        named = sorted(self._session.variables.items())
        of_model = {name for each in self._engine.programs.values() for name in each.variables}
        divided = self.plan.partitions > 1
        own = [each for name, each in named if divided or (name in of_model and not each.trainable)]
        kept = {id(each) for each in own}
        return [each for _, each in named if id(each) not in kept], own

    def _restore(self, found: Checkpoint) -> None:
        shared, own = self._parts()
        keras_checkpoint.read(shared, found.shared)
        keras_checkpoint.read(own, found.own)
        self._engine.step = found.step

    def _recorded(self, parameters: Hyparflow) -> Recorder:
        """Return the recorder of the timed steps, which writes beside the metrics; draw the plan there."""
        beside = pathlib.Path(os.environ.get(METRICS_FILE, "metrics.json"))
        if self._session.comm.rank == 0:
            self.plan.draw(beside.with_name("plan.svg"))
        first = self._engine.step + parameters.warmup + 1
        last = min(first + _RECORDED - 1, total_steps(parameters))
        return Recorder(self._session, beside.with_name("timeline.json"), (first, last), None)


def total_steps(parameters: Hyparflow) -> int:
    """Return the number of steps of a training."""
    return parameters.warmup + parameters.steps


def make_batch(parameters: Hyparflow, replica: int) -> Batch:
    """Return a replica's images (N, size, size, 3), normally distributed, and labels; other replicas have others."""
    random = np.random.default_rng((parameters.seed, replica))
    images = random.standard_normal((parameters.batch, parameters.image_size, parameters.image_size, 3), np.float32)
    labels = random.integers(CLASSES, size=parameters.batch)
    kind = "float64" if parameters.precision == "float64" else "float32"
    return Batch((images.astype(kind, copy=False),), (labels,))


def _path(communicator: MPI.Comm, gpu: TensorFlowGpu, plan: hyparflow.Plan, parameters: Hyparflow) -> Path:
    """Return how messages get from GPU to GPU, and why so; collective."""
    if plan.partitions == 1:
        if parameters.gpu_buffers == "direct":
            raise Refused("gpu_buffers='direct' requires messages between stages, which require partitions")
        messages = "the rows that parts of images exchange are too" if plan.spatial > 1 else "there are no messages"
        return Path("staged", f"gradients are staged, and {messages}")
    try:
        return choose_path(communicator, gpu, parameters.gpu_buffers, compressed=False)
    except ValueError as error:
        raise Refused(str(error)) from error


def _plan(communicator: MPI.Comm, model: Any, parameters: Hyparflow, begun: Checkpoint | None) -> hyparflow.Plan:
    """Return the plan, the same on all ranks; that of the checkpoint if there is one.

    Costs are measured, so that a new plan could cut the model elsewhere, or choose other micro-batches.
    """
    partitions, replicas = divide_ranks(parameters, communicator.size)
    before = None if begun is None else hyparflow.Plan.from_json(begun.document["plan"])
    if before is not None and before.replicas == replicas:
        return before
    request: dict[str, Any] = {
        "micro_batches": parameters.micro_batches or "auto",
        "recompute": _RECOMPUTE[parameters.recompute],
        "costs": parameters.costs,
        "refinements": parameters.refinements,
    }
    if before is not None:  # the same stages in another number of replicas
        request |= {
            "micro_batches": before.micro_batches,
            "recompute": [stage.recompute for stage in before.stages],
            "assignment": {node: stage.index for stage in before.stages for node in stage.nodes},
        }
    try:
        return plan_together(
            communicator,
            model,
            partitions=partitions,
            replicas=replicas,
            spatial=parameters.spatial,
            batch_size=parameters.batch * replicas,
            schedule=parameters.schedule,
            chunks=parameters.chunks,
            memory_limit=parameters.memory_limit * 2**20 or None,
            **request,
        )
    except hyparflow.HyparflowError as error:
        raise Refused(str(error)) from error

"""The program of a model: train for some steps, print Horovod's lines, write the metrics document."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from mpi4py import MPI  # before any framework

from hidl_workloads import arguments, intervals, metrics, phases, stop
from hidl_workloads.checkpoint import Checkpoints, Snapshot, directory_of_checkpoints
from hidl_workloads.energy import Meter
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import exit_if_refused
from hidl_workloads.training import strategy
from hidl_workloads.training.data import BatchReader
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.training.loop import StepTimes, run_steps
from hidl_workloads.training.model import DataSet, Model, Trainer, rank_batch
from hidl_workloads.training.order import Order
from hidl_workloads.world import failure_ends_all_ranks

#: Parameters that may differ between two jobs of a training, and those that affect the last bits of the weights.
_ANY_VALUE = ("steps", "warmup", "note", "timeline", "memory_limit", "recompute", "data", "readers")
_OTHER_BITS = ("backend", "bucket_mib", "gpu_buffers", "compression", "cycle_time_ms", "fusion_mib")

_SHOWN = 16  # digits of a checksum in messages

AnyParameters = TypeVar("AnyParameters", bound=Training)


@dataclass(frozen=True)
class Timing:
    """Measurements of a training.

    Attributes:
        seconds: Seconds of each timed step on the slowest rank.
        items: Number of items that all ranks process in each of these steps.
        loss: The last loss in nats, the mean over the ranks.
    """

    seconds: Sequence[float]
    items: int
    loss: float


def main(name: str, kind: type[AnyParameters], make: Callable[[AnyParameters], Model]) -> None:
    """Train the model that ``make`` returns for the parameters in ``sys.argv``; every rank calls this.

    ``make`` may raise ``ValueError`` for parameters that do not go together. A failure ends all ranks.
    """
    with failure_ends_all_ranks():
        try:
            parameters = strategy.divide_batch(arguments.parse(kind, sys.argv[1:]), MPI.COMM_WORLD.size)
            strategy.check(parameters)
            model = make(parameters)
        except ValueError as error:
            sys.exit(f"{name}: {error}")
        with exit_if_refused(MPI.COMM_WORLD, name):
            run(MPI.COMM_WORLD, name, model, parameters)


def run(communicator: MPI.Comm, name: str, model: Model, parameters: Training) -> None:
    """Train, print the result on rank 0 and write the metrics document; collective; may raise ``Refused``."""
    directory = directory_of_checkpoints()
    if directory is not None:
        stop.listen()  # the signal may arrive while the framework is imported
    data = model.open_data(communicator, Path(parameters.data)) if parameters.data else None
    trainer = make_trainer(communicator, model, parameters)
    if communicator.rank == 0:
        print(header(trainer, model, parameters, communicator.size), flush=True)
        if data is not None:
            print(f"Data: {len(data):,} samples in {parameters.data}", flush=True)
    checkpoints = (
        None if directory is None else _checkpoints(communicator, directory, name, trainer, parameters, data=data)
    )
    reader = None if data is None else BatchReader(data, communicator, parameters)
    meter = Meter(communicator)
    course = Course(communicator, trainer, model, parameters, checkpoints, reader=reader, meter=meter)
    timing = course.train()
    if reader is not None:
        reader.close()
    if timing is None:
        progress = Metric("progress", float(course.step), "steps", [float(course.step)])
        metrics.report(
            communicator, program=name, parameters=asdict(parameters), versions=trainer.versions, metrics=[progress]
        )
        stop.exit_stopped(communicator, f"stopped after step {course.step} of {course.total}, to be continued")
    total = timing.items
    if communicator.rank == 0:
        print(summary(timing.seconds, total / communicator.size, communicator.size, model.label), flush=True)
    checksums = communicator.allgather(checksum(trainer.weights()))
    paths = communicator.allgather(trainer.path) if trainer.path else []
    of_device = trainer.metrics()
    trainer.close()
    step_time = float(np.median(timing.seconds))
    rates = [total / each for each in timing.seconds]
    metrics.report(
        communicator,
        program=name,
        parameters=asdict(parameters),
        versions=trainer.versions,
        metrics=[
            Metric(f"{model.items}_per_second", total / step_time, f"{model.items}/s", rates),
            Metric("step_time", step_time, "s", timing.seconds),
            Metric("weight_checksum", checksums[0], "sha256", checksums),
            Metric("loss", timing.loss, "nats", [timing.loss]),
            *([Metric("path", trainer.path, "gradients", paths)] if paths else []),
            *of_device,
            *utilization(model, rates, of_device),
            *(reader.metrics(timing.seconds, course.timed_steps, total / model.items_per_step()) if reader else []),
        ],
        energy=meter.collect(total * course.timed_steps, model.items.removesuffix("s")),
    )
    if checkpoints is not None:
        checkpoints.finish()


def utilization(model: Model, rates: Sequence[float], of_device: Sequence[Metric]) -> list[Metric]:
    """Return the share of the ranks' matrix multiplication rate that the model's operations reach (MFU)."""
    flops = model.flops_per_item()
    if flops is None:
        return []
    possible = sum(map(float, next(each.samples for each in of_device if each.name == "matmul_rate"))) * 1e9
    shares = [rate * flops / possible for rate in rates]
    return [Metric("mfu", float(np.median(rates)) * flops / possible, "share", shares)]


def make_trainer(communicator: MPI.Comm, model: Model, parameters: Training) -> Trainer:
    """Return the trainer of the framework, with equal weights on all ranks; only that framework is imported."""
    batch = rank_batch(model, parameters.seed, communicator.rank)
    if parameters.framework == "torch":
        from hidl_workloads.training.torch_trainer import TorchTrainer

        return TorchTrainer(communicator, model, parameters, batch)
    from hidl_workloads.training.tensorflow_trainer import TensorFlowTrainer

    return TensorFlowTrainer(communicator, model, parameters, batch)


class Course:
    """A training from its first step, or from the newest checkpoint, to its last step; collective.

    The first steps of each job are warm-up steps, but a training ends after the same number of steps in any number of
    jobs.

    Attributes:
        step: Number of completed steps.
        total: Number of steps of the training.
        timed_steps: Number of steps of this job after its warm-up.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        trainer: Trainer,
        model: Model,
        parameters: Training,
        checkpoints: Checkpoints | None = None,
        *,
        reader: BatchReader | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._communicator, self._trainer, self._model = communicator, trainer, model
        self._items = model.items_per_step() * communicator.size
        self._parameters, self._checkpoints = parameters, checkpoints
        self._order = Order(parameters.batches, parameters.seed) if parameters.batches else None
        self._reader = reader
        self.step, self.total = 0, parameters.warmup + parameters.steps
        self._meter, self.timed_steps = meter, 0
        self._times = StepTimes(communicator, parameters.warmup, self._items)
        self._loss = math.nan
        self._is_mean = True  # the loss is that of all ranks

    def train(self) -> Timing | None:
        """Train until the last step; return None if a stop was requested before."""
        self._continue()
        self._feed()
        self.timed_steps = max(0, self.total - self.step - self._parameters.warmup)
        step = self._trainer.step if self._reader is None else self._read_and_step
        steps = run_steps(step, self.total, done=self.step, warmup=self._parameters.warmup, meter=self._meter)
        for seconds, loss in steps:
            self.step += 1
            self._times.add(seconds)
            self._loss, self._is_mean = loss, False
            last = self.step == self.total
            if self._checkpoints is not None and self._checkpoints.after_step(self.step, self._snapshot, last=last):
                return None
            if not last:
                self._feed()
        self._collect()
        return Timing(self._times.timed, self._times.items, self._loss)

    def _continue(self) -> None:
        found = self._checkpoints.newest(self.total) if self._checkpoints is not None else None
        if found is None:
            return
        self._trainer.restore(found.shared, found.own)
        self.step = found.step
        self._times = StepTimes(self._communicator, self._parameters.warmup, self._items, found)
        self._loss = found.document["loss"]
        for each in (self._order, self._reader):
            if each is not None:
                each.position = found.document["position"]
        if self._communicator.rank == 0:
            print(f"Continuing after step {self.step} of {self.total}", flush=True)

    def _feed(self) -> None:
        if self._order is not None:
            number = self._order.take(self._communicator.rank, self._communicator.size)
            self._trainer.feed(rank_batch(self._model, self._parameters.seed, number))

    def _read_and_step(self) -> float:
        assert self._reader is not None
        with phases.phase(phases.INPUT):
            batch = self._reader.take()
        self._trainer.feed(batch)  # exchanges batches if ranks share the weights
        return self._trainer.step()

    def _snapshot(self) -> Snapshot:
        self._collect()
        source = self._order or self._reader
        document = {**self._times.state, "loss": self._loss}
        return self._trainer.snapshot(document | ({"position": source.position} if source else {}))

    def _collect(self) -> None:
        """Collect the times of the steps since the last call, and compute the mean loss."""
        self._times.collect()
        if not self._is_mean:
            self._loss = self._communicator.allreduce(self._loss) / self._communicator.size
            self._is_mean = True


def _checkpoints(
    communicator: MPI.Comm,
    directory: Path,
    name: str,
    trainer: Trainer,
    parameters: Training,
    *,
    data: DataSet | None = None,
) -> Checkpoints:
    given = asdict(parameters)
    free = {*_ANY_VALUE, *_OTHER_BITS}
    if getattr(parameters, "total_batch", 0) and not parameters.batches:
        # A rank's share of the total batch. The batches of synthetic data have this size, and must keep it.
        free.add("batch")
    is_divided = strategy.parallel(parameters) in ("hsdp", "tp", "pp")
    return Checkpoints(
        communicator,
        directory,
        identity={
            "program": name,
            **{key: value for key, value in given.items() if key not in free},
            **({"partitions": strategy.partitions(parameters, communicator)} if is_divided else {}),
            "weights": trainer.parameter_count,
            **({"samples": len(data), "data set": data.digest()[:_SHOWN]} if data is not None else {}),
        },
        versions={**trainer.versions, "device": trainer.device, **{key: given[key] for key in _OTHER_BITS}},
        fixed_ranks=trainer.fixed_ranks,
    )


def header(trainer: Trainer, model: Model, parameters: Training, ranks: int) -> str:
    """Return the lines that say what is measured."""
    versions = ", ".join(f"{name} {version}" for name, version in trainer.versions.items())
    reason = f" ({trainer.path_reason})" if trainer.path_reason else ""
    path = f", path: {trainer.path}{reason}" if trainer.path else ""
    return "\n".join(
        (
            f"Model: {model.title}, {trainer.parameter_count:,} parameters",
            f"Framework: {versions}, {parameters.precision}, {parameters.optimizer}, on {trainer.device}",
            f"{strategy.task(parameters)} by {strategy.title(parameters)}{path}",
            f"Batch size: {model.describe_batch()}",
            f"Number of ranks: {ranks}",
        )
    )


def summary(seconds: Sequence[float], items: float, ranks: int, label: str) -> str:
    """Return the lines of Horovod's synthetic benchmark: the mean over the steps, +- its 95 % interval.

    (Horovod prints 1.96 standard deviations of the samples instead, which is not an interval of the mean.)
    """
    rates = [items / each for each in seconds]
    mean, half = intervals.mean(rates), intervals.half_width(rates)
    return (
        f"{label}/sec per rank: {mean:.1f} +-{half:.1f}\n"
        f"Total {label.lower()}/sec on {ranks} rank(s): {ranks * mean:.1f} +-{ranks * half:.1f}"
    )

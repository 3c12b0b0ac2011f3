"""The program of a model: train for some steps, print Horovod's lines, write the metrics document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from mpi4py import MPI  # before any framework

from hidl_workloads import arguments, intervals, metrics
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import exit_if_refused
from hidl_workloads.training import strategy
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.training.loop import run_steps
from hidl_workloads.training.model import Model, Trainer, rank_batch
from hidl_workloads.world import failure_ends_all_ranks

AnyParameters = TypeVar("AnyParameters", bound=Training)


@dataclass(frozen=True)
class Timing:
    """The seconds of each timed step on the slowest rank, and the last loss in nats, the mean over the ranks."""

    seconds: Sequence[float]
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
    trainer = make_trainer(communicator, model, parameters)
    if communicator.rank == 0:
        print(header(trainer, model, parameters, communicator.size), flush=True)
    timing = train(communicator, trainer, parameters)
    items = model.items_per_step()
    if communicator.rank == 0:
        print(summary(timing.seconds, items, communicator.size, model.label), flush=True)
    checksums = communicator.allgather(checksum(trainer.weights()))
    paths = communicator.allgather(trainer.path) if trainer.path else []
    of_device = trainer.metrics()
    trainer.close()
    step_time = float(np.median(timing.seconds))
    total = items * communicator.size
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
        ],
    )


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


def train(communicator: MPI.Comm, trainer: Trainer, parameters: Training) -> Timing:
    """Train the warm-up steps and the timed ones; collective."""
    steps = list(run_steps(trainer.step, parameters.warmup + parameters.steps))
    seconds = np.array([each for each, _ in steps[parameters.warmup :]])
    communicator.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return Timing(seconds.tolist(), communicator.allreduce(steps[-1][1]) / communicator.size)


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


def summary(seconds: Sequence[float], items: int, ranks: int, label: str) -> str:
    """Return the lines of Horovod's synthetic benchmark: the mean over the steps, +- its 95 % interval.

    (Horovod prints 1.96 standard deviations of the samples instead, which is not an interval of the mean.)
    """
    rates = [items / each for each in seconds]
    mean, half = intervals.mean(rates), intervals.half_width(rates)
    return (
        f"{label}/sec per rank: {mean:.1f} +-{half:.1f}\n"
        f"Total {label.lower()}/sec on {ranks} rank(s): {ranks * mean:.1f} +-{ranks * half:.1f}"
    )

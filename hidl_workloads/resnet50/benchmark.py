"""The benchmark: warm-up, timed steps, and what is said about them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from mpi4py import MPI

from hidl_workloads import intervals, metrics
from hidl_workloads.data_parallel.weights import checksum
from hidl_workloads.metrics import Metric
from hidl_workloads.resnet50.parameters import BACKENDS, Parameters
from hidl_workloads.resnet50.trainer import Trainer, make_batch


@dataclass(frozen=True)
class Timing:
    """Each timed step's time in seconds, the slowest rank's, and the final loss in nats, the mean over the ranks."""

    seconds: Sequence[float]
    loss: float


def run(communicator: MPI.Comm, parameters: Parameters) -> None:
    """Train, print the familiar lines on rank 0 and write the metrics document; every rank calls this.

    Raises ``FloatingPointError`` when the loss is not finite.
    """
    trainer = make_trainer(communicator, parameters)
    if communicator.rank == 0:
        print(header(trainer, parameters, communicator.size), flush=True)
    timing = train(communicator, trainer, parameters)
    images = parameters.batch * communicator.size
    if communicator.rank == 0:
        print(summary(timing.seconds, parameters.batch, communicator.size), flush=True)
    checksums = communicator.allgather(checksum(trainer.weights()))
    trainer.close()
    step_time = float(np.median(timing.seconds))
    metrics.report(
        communicator,
        program="resnet50",
        parameters=asdict(parameters),
        versions=trainer.versions,
        metrics=[
            Metric("images_per_second", images / step_time, "images/s", [images / t for t in timing.seconds]),
            Metric("step_time", step_time, "s", timing.seconds),
            Metric("weight_checksum", checksums[0], "sha256", checksums),
            Metric("loss", timing.loss, "nats", [timing.loss]),
        ],
    )


def make_trainer(communicator: MPI.Comm, parameters: Parameters) -> Trainer:
    """Return the chosen framework's trainer, with equal weights on all ranks; only that framework is imported."""
    batch = make_batch(parameters, communicator.rank)
    if parameters.framework == "torch":
        from hidl_workloads.resnet50.torch_trainer import TorchTrainer

        return TorchTrainer(communicator, parameters, batch)
    from hidl_workloads.resnet50.tensorflow_trainer import TensorFlowTrainer

    return TensorFlowTrainer(communicator, parameters, batch)


def train(communicator: MPI.Comm, trainer: Trainer, parameters: Parameters) -> Timing:
    """Train the warm-up steps and the timed ones; the ranks keep step by their gradients alone, not by barriers."""
    seconds = np.zeros(parameters.steps)
    loss = math.nan
    for number in range(-parameters.warmup, parameters.steps):
        start = time.perf_counter()
        loss = trainer.step()
        if number >= 0:
            seconds[number] = time.perf_counter() - start
        if not math.isfinite(loss):
            step = number + parameters.warmup + 1
            raise FloatingPointError(f"the loss is {loss} in step {step}: choose a smaller learning_rate")
    communicator.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return Timing(seconds.tolist(), communicator.allreduce(loss) / communicator.size)


def header(trainer: Trainer, parameters: Parameters, ranks: int) -> str:
    """Say what will be measured."""
    versions = ", ".join(f"{name} {version}" for name, version in trainer.versions.items())
    side = parameters.image_size
    return "\n".join(
        (
            f"Model: ResNet-50, {trainer.parameter_count:,} parameters",
            f"Framework: {versions}, {parameters.precision}, {parameters.optimizer}, on CPU",
            f"Gradients: averaged by {BACKENDS[parameters.backend, parameters.framework]}",
            f"Batch size: {parameters.batch} per rank, images of {side} x {side} pixels",
            f"Number of ranks: {ranks}",
        )
    )


def summary(seconds: Sequence[float], batch: int, ranks: int) -> str:
    """Return the lines known from Horovod's synthetic benchmark: the mean over the steps, +- its 95 % interval.

    (Horovod prints 1.96 standard deviations of the samples instead, which is not an interval of the mean.)
    """
    rates = [batch / t for t in seconds]
    mean, half = intervals.mean(rates), intervals.half_width(rates)
    return (
        f"Img/sec per rank: {mean:.1f} +-{half:.1f}\n"
        f"Total img/sec on {ranks} rank(s): {ranks * mean:.1f} +-{ranks * half:.1f}"
    )

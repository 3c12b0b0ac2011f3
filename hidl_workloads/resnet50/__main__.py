"""``python -m hidl_workloads.resnet50 --framework=torch --batch=8 ...``: train, and tell how fast."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from hidl_workloads import metrics
from hidl_workloads.metrics import Metric, mean_and_interval
from hidl_workloads.resnet50.settings import Settings, parse


def train(settings: Settings, world: Any) -> tuple[Any, list[float], float]:
    """Train; return the trainer, the seconds of each timed step (the slowest rank's) and the mean last loss."""
    if settings.framework == "torch":
        from hidl_workloads.resnet50.train_torch import Trainer
    else:
        from hidl_workloads.resnet50.train_tensorflow import Trainer
    trainer = Trainer(settings, world)
    seconds = np.zeros(settings.steps)
    loss = math.nan
    for number in range(-settings.warmup, settings.steps):
        before = time.perf_counter()
        loss = trainer.step()
        if number >= 0:
            seconds[number] = time.perf_counter() - before
    losses = world.allgather(loss)
    if not all(map(math.isfinite, losses)):
        sys.exit(f"the loss is not finite ({losses}): the training diverged; try a smaller learning_rate")
    world.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return trainer, seconds.tolist(), fmean(losses)


def tell(settings: Settings, ranks: int, rates: list[float]) -> None:
    """Print the lines that people know; ``rates`` are images/s of all ranks together, one for each step."""
    mean, interval = mean_and_interval(rates)
    print(f"Model: ResNet-50, {settings.framework}, {settings.precision}")
    print(f"Batch size per rank: {settings.batch}, image size: {settings.image_size}")
    print(f"Img/sec per rank: {mean / ranks:.1f} +-{interval / ranks:.1f}")
    print(f"Total img/sec on {ranks} rank(s): {mean:.1f} +-{interval:.1f}", flush=True)


def main() -> None:
    """The program."""
    settings = parse()
    world = MPI.COMM_WORLD
    trainer, seconds, loss = train(settings, world)
    images = settings.batch * world.size
    rates = [images / second for second in seconds]
    checksums = world.gather(trainer.checksum())
    if world.rank == 0:
        tell(settings, world.size, rates)
    checksums = checksums or [""]
    metrics.write(
        world,
        program="hidl_workloads.resnet50",
        parameters={name: str(value) for name, value in asdict(settings).items()},
        versions={
            "mpi4py": mpi4py.__version__,
            "mpi_library": MPI.Get_library_version().splitlines()[0].strip(),
            **trainer.versions(),
        },
        metrics=[
            Metric("images_per_second", images / median(seconds), "images/s", rates),
            Metric("step_time", median(seconds), "s", seconds),
            Metric("weight_checksum", checksums[0], "sha256", checksums),
            Metric("loss", loss, "nats", [loss]),
        ],
    )


if __name__ == "__main__":
    main()

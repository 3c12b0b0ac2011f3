"""Trains a ResNet on all ranks: ``large_images.py FILE --depth=8 ...``.

Rank 0 writes losses, weights, and each rank's peak memory before the first step and at the end. Before, a rank has
TensorFlow, the weights and the optimizer.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hidl_workloads import arguments
from hidl_workloads.hyparflow import resnet


def main(file: Path, words: list[str]) -> None:
    """Train; every rank has the whole model if it is not divided into partitions."""
    from hidl_workloads.hyparflow.trainer import PartitionedTrainer

    world = MPI.COMM_WORLD
    parameters = arguments.parse(resnet.Parameters, words)
    trainer = PartitionedTrainer(world, parameters, lambda: resnet.make(parameters))
    before = world.allgather(peak())
    losses = [world.allreduce(trainer.step().loss) / trainer.plan.replicas for _ in range(parameters.steps)]
    peaks = world.allgather(peak())
    every: list[dict[str, Any]] = world.allgather(dict(trainer.weights()))
    if world.rank == 0:
        weights = {name: value for each in every for name, value in each.items()}
        np.savez(file, losses=losses, before=before, peaks=peaks, **weights)
        print(losses, before, peaks, trainer.plan.prediction.peak_bytes, flush=True)
    trainer.close()


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

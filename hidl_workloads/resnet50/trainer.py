"""What the benchmark's loop needs of a framework, and what it gives to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hidl_workloads.resnet50.parameters import Parameters

CLASSES = 1000


class Trainer(Protocol):
    """A model with its optimizer and its batch, on one rank of the world."""

    parameter_count: int
    versions: dict[str, str]

    def step(self) -> float:
        """Train one step, with all ranks; returns the loss of this rank's batch, in nats."""

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Yield every trainable weight's name and value, in an order that is the same on all ranks."""

    def close(self) -> None:
        """Give back what was taken, after the last step; every rank calls this."""


@dataclass(frozen=True)
class Batch:
    """Synthetic images, (N, 3, H, W) float32 of a normal distribution, and their labels, (N,) int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def rank_seed(seed: int, rank: int) -> int:
    """Return 32 bits that differ for every pair of seed and rank (seed 1's rank 0 is not seed 0's rank 1)."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def make_batch(parameters: Parameters, rank: int) -> Batch:
    """Make the batch of one rank: every rank has other images and labels."""
    random = np.random.default_rng(rank_seed(parameters.seed, rank))
    shape = (parameters.batch, 3, parameters.image_size, parameters.image_size)
    return Batch(random.standard_normal(shape, np.float32), random.integers(CLASSES, size=parameters.batch))

"""The order in which ranks train on the batches or samples of a data set: each exactly once in each epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Order:
    """A shuffled list of batches or samples that all ranks take from in a step.

    The position counts those that all ranks have taken; a checkpoint needs no more, at any number of ranks. The last
    step of an epoch continues with samples of the next one if too few are left.

    Args:
        size: Number of batches or samples of an epoch.
        seed: Seed of the order, which differs from epoch to epoch.
        position: Number of batches or samples that were taken before.
    """

    def __init__(self, size: int, seed: int, position: int = 0) -> None:
        self._size, self._seed = size, seed
        self.position = position

    def take(self, rank: int, ranks: int) -> int:
        """Return the number of the batch for this rank in the next step of ``ranks`` ranks."""
        ((_, batch),) = self.take_samples(rank, ranks, 1)
        return batch

    def take_samples(self, rank: int, ranks: int, count: int) -> list[tuple[int, int]]:
        """Return the epochs and numbers of ``count`` samples for this rank in the next step of ``ranks`` ranks."""
        first = self.position + rank * count
        self.position += ranks * count
        places = [divmod(place, self._size) for place in range(first, first + count)]
        return [(epoch, int(_shuffled(self._size, self._seed, epoch)[place])) for epoch, place in places]


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(size)

"""The order in which ranks train on the batches of a data set: each batch exactly once in each epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Order:
    """A shuffled list of batches that all ranks take from, one each in a step.

    The position counts the batches that all ranks have taken; a checkpoint needs no more, at any number of ranks.

    Args:
        batches: Number of batches of an epoch.
        seed: Seed of the order, which differs from epoch to epoch.
        position: Number of batches that were taken before.
    """

    def __init__(self, batches: int, seed: int, position: int = 0) -> None:
        self._batches, self._seed = batches, seed
        self.position = position

    def take(self, rank: int, ranks: int) -> int:
        """Return the number of the batch for this rank in the next step of ``ranks`` ranks."""
        epoch, place = divmod(self.position + rank, self._batches)
        self.position += ranks
        return int(_shuffled(self._batches, self._seed, epoch)[place])


@lru_cache(maxsize=2)
def _shuffled(batches: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(batches)

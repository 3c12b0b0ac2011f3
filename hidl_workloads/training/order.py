"""The order in which ranks train on the batches or samples of a data set: each exactly once in each epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024
_ROUNDS = 6


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
        size, seed = self._size, self._seed
        return [(epoch, _shuffle_block(size, seed, epoch, place // _BLOCK)[place % _BLOCK]) for epoch, place in places]


@lru_cache(maxsize=8)
def _shuffle_block(size: int, seed: int, epoch: int, block: int) -> list[int]:
    """Return a block of the shuffled numbers below ``size``; the whole list would take gigabytes and seconds.

    A Feistel network permutes all numbers of an even number of bits; those that are not below ``size`` are permuted
    again.
    """
    keys = np.random.SeedSequence((seed, epoch)).generate_state(_ROUNDS, np.uint64)
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    found = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, size), dtype=np.uint64)
    outside = np.ones(len(found), bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & mask
        for key in keys:
            left, right = right, left ^ (_hash_numbers(right + key) & mask)
        found[outside] = left << half | right
        outside = found >= np.uint64(size)
    numbers: list[int] = found.tolist()
    return numbers


def _hash_numbers(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each number: the last steps of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)

"""Holds the ranks to the same data: an unseeded shuffle, or random numbers drawn by each rank, spoil a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hyparflow.errors import DataError
from hyparflow.training.agreement import agreed
from hyparflow.training.collectives import gather_all, sum_equal
from hyparflow.training.data import GlobalBatch, Source

#: Bytes of a batch that are compared, behind the first batch of a pass, which is compared whole: at most 1 ms a step.
SAMPLED = 2**20

_CURE = (
    "every rank must read the same global batches in the same order; seed what is random "
    "(keras.utils.set_random_seed, Dataset.shuffle(seed=...))"
)


class SameData:
    """Compares what the ranks of ``comm`` read from a source.

    The first batch of a pass is compared before it is used, and the ends of passes whose length is unknown at once.
    Of all other batches some rows add to a digest, which ``check`` compares.
    """

    def __init__(self, comm: Any, source: Source) -> None:
        self._comm = comm
        self._source = source
        self._digest = 0
        self._read = 0

    def batches(self, begun: Iterator[GlobalBatch]) -> Iterator[GlobalBatch]:
        """The batches of a pass; collective where it begins, and for each batch if their number is unknown.

        :raises DataError: on all ranks, if the first batches differ, or one rank's data end before another's.
        """
        for number, batch in enumerate(self._together(begun)):
            if number == 0:
                self._compare((batch.digest(), self._source.batches), "do not read the same data")
            else:
                self._digest = batch.digest(self._digest, SAMPLED)
            self._read += 1
            yield batch

    def check(self) -> None:
        """Compare all that was read since the last call; collective.

        :raises DataError: on all ranks, if two have read different data.
        """
        found = self._digest, self._read
        self._digest = self._read = 0
        self._compare(found, f"did not read the same data in the last {found[1]} batches")

    def _together(self, begun: Iterator[GlobalBatch]) -> Iterator[GlobalBatch]:
        if self._source.batches is not None:
            yield from begun
            return
        while True:
            batch = next(begun, None)
            ended = int(sum_equal(self._comm, np.array([batch is None], dtype=np.int64))[0])
            if 0 < ended < self._comm.size:
                who = f"{ended} of {self._comm.size} ranks"
                raise agreed(DataError(f"the data of {who} end before those of the others: {_CURE}"))
            if batch is None:
                return
            yield batch

    def _compare(self, own: tuple[int, int | None], problem: str) -> None:
        every = gather_all(self._comm, own)
        others = [rank for rank, each in enumerate(every) if each != every[0]]
        if others:
            raise agreed(DataError(f"rank 0 and rank {others[0]} {problem}: {_CURE}"))

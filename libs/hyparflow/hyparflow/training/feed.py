"""What a rank is fed with: its replica's share of each global batch.

Training takes whole batches only. A last batch of a pass that is smaller than the others is left out, and rank 0 says
so once: its micro-batches would be smaller than the others, and each of its samples would weigh more in an update. With
shuffling, other samples are left out in each pass. Evaluation and prediction use every sample: the last rows are
repeated up to the size that the ranks work on, and what comes of the repeated ones is cut off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyparflow.engine.engine import Batch, Reads
from hyparflow.errors import DataError
from hyparflow.training.agreement import agreed
from hyparflow.training.collectives import gather_all
from hyparflow.training.data import GlobalBatch, Source
from hyparflow.training.layout import Array


@dataclass
class Position:
    """The next global batch: batch ``batch`` of pass ``number`` through the data."""

    number: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Share:
    """Which rows of every batch a replica takes: the ``replica``-th of ``replicas`` contiguous shares."""

    replica: int
    replicas: int
    reads: Reads

    def of(self, batch: GlobalBatch, rows: Callable[[int, int], slice | Array], size: int) -> Batch:
        """This replica's part of ``size`` samples of the batch; ``rows`` gives their places from their numbers."""
        each = size // self.replicas
        index = rows(self.replica * each, (self.replica + 1) * each)

        def taken(arrays: tuple[Array | None, ...], wanted: tuple[int, ...]) -> tuple[Array | None, ...]:
            return tuple(
                None if array is None or place not in wanted else np.ascontiguousarray(batch.take(array, index))
                for place, array in enumerate(arrays)
            )

        samples = batch.samples
        return Batch(
            taken(samples.inputs, self.reads.inputs),
            taken(samples.targets, self.reads.outputs),
            taken(samples.weights, self.reads.outputs),
        )


class TrainingFeed:
    """The batches of the epochs of a training, from a position on.

    ``comm``: all ranks; the first batch of each pass is compared between them, so that ranks whose data differ (an
    unseeded shuffle, random numbers drawn by each rank) are found out before they spoil the training.
    """

    def __init__(
        self, source: Source, share: Share, steps_per_epoch: int | None, position: Position, comm: Any
    ) -> None:
        self.position = position
        self._skipped = False  # whether samples were left out
        self._source = source
        self._share = share
        self._steps = steps_per_epoch
        self._comm = comm
        self._batches: Iterator[GlobalBatch] | None = None
        self._compared = False

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, if they are known."""
        if self._steps is not None or self._source.batches is None:
            return self._steps
        count = getattr(self._source, "samples", None)
        return self._source.batches if count is None else len(count) // self._source.batch_size

    def epoch(self, done: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of which ``done`` are done: up to the end of the pass, or ``steps_per_epoch``.

        :raises DataError: if the data end before ``steps_per_epoch`` batches, or batches differ in size.
        """
        given = done
        while self._steps is None or given < self._steps:
            batch = self._next()
            if batch is None:
                if self._steps is None:
                    return
                continue
            given += 1
            yield self._share.of(batch, slice, self._source.batch_size)

    def _next(self) -> GlobalBatch | None:
        """The next whole batch; None at the end of a pass."""
        begun = self._batches is None
        if self._batches is None:
            self._batches = self._source.begin(self.position.number, self.position.batch)
            self._compared = False
        for batch in self._batches:
            if not self._compared:
                self._compared = True
                compare(self._comm, batch, self._source.batches)
            if len(batch) == self._source.batch_size:
                self.position.batch += 1
                return batch
            self._skip(batch)
        if begun and self.position.batch == 0:
            raise agreed(DataError(f"the data ran out: pass {self.position.number + 1} gave no whole batch"))
        self._batches = None
        self.position.number += 1
        self.position.batch = 0
        return None

    def _skip(self, batch: GlobalBatch) -> None:
        assert self._batches is not None
        if len(batch) > self._source.batch_size or next(self._batches, None) is not None:
            sizes = f"{self._source.batch_size} samples, then {len(batch)}"
            raise agreed(DataError(f"only the last batch of a pass may be smaller than the others: {sizes}"))
        if not self._skipped and self._comm.rank == 0:
            sys.stderr.write(
                f"hyparflow: {len(batch)} samples at the end of each pass through the data are left out of training: "
                f"they do not fill a batch of {self._source.batch_size}\n"
            )
        self._skipped = True


@dataclass(frozen=True)
class Part:
    """Samples of one batch that the ranks work on at once: ``valid`` rows of this replica's share are real ones."""

    batch: Batch
    valid: int
    samples: int  # real ones, over all replicas


def evaluation(source: Source, share: Share, size: int, steps: int | None, comm: Any) -> Iterator[tuple[int, Part]]:
    """One pass, every sample of it, as (number of the batch, part): ``size`` samples at once over all replicas.

    :raises DataError: if the data end before ``steps`` batches.
    """
    number = -1
    for number, batch in enumerate(source.begin(0, 0)):
        if number == 0:
            compare(comm, batch, source.batches)
        for begin in range(0, len(batch), size):
            count = min(size, len(batch) - begin)

            def rows(first: int, last: int, begin: int = begin, count: int = count) -> Array:
                return begin + np.minimum(np.arange(first, last), count - 1)

            each = size // share.replicas
            valid = min(max(count - share.replica * each, 0), each)
            yield number, Part(share.of(batch, rows, size), valid, count)
        if steps is not None and number + 1 == steps:
            return
    if number < 0:
        raise agreed(DataError("the data ran out: there is no batch left to evaluate or predict"))
    if steps is not None:
        raise agreed(DataError(f"the data ran out after {number + 1} batches, and {steps} were asked for"))


def compare(comm: Any, batch: GlobalBatch, batches: int | None) -> None:
    """Raise DataError on every rank where the ranks do not hold the same batch, or the same number of them."""
    digests = gather_all(comm, (batch.digest(), batches))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise agreed(
            DataError(
                f"rank 0 and rank {others[0]} do not read the same data: every rank must read the same global batches "
                "in the same order; seed what is random (keras.utils.set_random_seed, Dataset.shuffle(seed=...))"
            )
        )

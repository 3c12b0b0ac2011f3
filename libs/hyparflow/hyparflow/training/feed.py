"""What a rank is fed with: its replica's share of each global batch.

Every sample is used. A batch that is smaller than the others is shared out in smaller micro-batches, which are equally
large: where its samples do not suffice, the last one is repeated. What comes of the repeated ones counts in no loss and
no metric, and is cut off from predictions.

Holds the ranks to the same data: an unseeded shuffle, or random numbers drawn by each rank, spoil a training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyparflow.engine.engine import Batch, Counts, Reads
from hyparflow.errors import DataError
from hyparflow.training.agreement import agreed, gather_all, sum_equal
from hyparflow.training.data import GlobalBatch, Source
from hyparflow.training.layout import Array

#: Bytes of a batch that are compared, behind the first batch of a pass, which is compared whole: at most 1 ms a step.
SAMPLED = 2**20
_CURE = (
    "every rank must read the same global batches in the same order; seed what is random "
    "(keras.utils.set_random_seed, Dataset.shuffle(seed=...))"
)


@dataclass
class Position:
    """The next global batch: batch ``batch`` of pass ``number`` through the data."""

    number: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Share:
    """Which rows of every batch a replica takes: the ``replica``-th of ``replicas`` contiguous shares.

    ``totals``: gives those of a whole batch, see ``hyparflow.backends.Portion``.
    """

    replica: int
    replicas: int
    micro_batches: int
    reads: Reads
    totals: Callable[[GlobalBatch], tuple[float, ...]]

    def filled(self, samples: int) -> int:
        """The least rows that can be shared out and hold so many samples."""
        shares = self.replicas * self.micro_batches
        return -(-samples // shares) * shares

    def parts(self, batch: GlobalBatch, size: int) -> Iterator[Batch]:
        """This replica's rows of a batch, in steps of ``size`` rows over all replicas."""
        each, samples = size // self.replicas, len(batch)
        totals, steps = self.totals(batch), -(-samples // size)
        for begin in range(0, samples, size):
            first = begin + self.replica * each
            if first + each <= samples:
                rows: slice | Array = slice(first, first + each)
            else:
                rows = np.minimum(np.arange(first, first + each), samples - 1)
            real = min(max(samples - first, 0), each)
            yield self._of(batch, rows, Counts(real, each // self.micro_batches, samples, steps, totals))

    def _of(self, batch: GlobalBatch, index: slice | Array, counts: Counts) -> Batch:

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
            counts,
        )


def totals_of(totals: Any, batch: GlobalBatch) -> tuple[float, ...]:
    """What the losses of a batch are divided by, where that is more than its number of samples."""
    if not totals.outputs:
        return ()
    every, samples = slice(None), batch.samples
    inputs = [batch.take(each, every) for each in samples.inputs] if totals.inputs else []

    def taken(arrays: tuple[Array | None, ...]) -> dict[int, Array | None]:
        wanted = {output: arrays[output] for output in totals.outputs}
        return {output: None if each is None else batch.take(each, every) for output, each in wanted.items()}

    found: tuple[float, ...] = totals.of(inputs, taken(samples.targets), taken(samples.weights))
    return found


class TrainingFeed:
    """The batches of the epochs of a training, from a position on. ``comm``: all ranks."""

    def __init__(
        self, source: Source, share: Share, steps_per_epoch: int | None, position: Position, comm: Any
    ) -> None:
        self.position = position
        self._source = source
        self._share = share
        self._steps = steps_per_epoch
        self._same = SameData(comm, source)
        self._batches: Iterator[GlobalBatch] | None = None

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, if they are known."""
        return self._source.batches if self._steps is None else self._steps

    def epoch(self, done: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of which ``done`` are done: up to the end of the pass, or ``steps_per_epoch``.

        A pass that ends before those steps ends the epoch, with a warning, as in Keras.

        :raises DataError: if there is none, or a batch is larger than the first one.
        """
        given = done
        while self._steps is None or given < self._steps:
            batch = self._next()
            if batch is None:
                if self._steps is None:
                    return
                if given:
                    found = f"{given} of steps_per_epoch={self._steps} batches"
                    warnings.warn(f"the data ran out after {found}: repeat() the dataset", stacklevel=2)
                    return
                continue
            given += 1
            yield from self._share.parts(batch, self._share.filled(len(batch)))

    def check(self) -> None:
        """Compare what the ranks have read since the last call: at the end of each epoch; collective.

        :raises DataError: if two have read different data.
        """
        self._same.check()

    def _next(self) -> GlobalBatch | None:
        """The next batch; None at the end of a pass."""
        begun = self._batches is None
        if self._batches is None:
            self._batches = self._same.batches(self._source.begin(self.position.number, self.position.batch))
        for batch in self._batches:
            if len(batch) > self._source.batch_size:
                sizes = f"{self._source.batch_size} samples, then {len(batch)}"
                raise agreed(DataError(f"batches must not exceed the first one: {sizes}"))
            self.position.batch += 1
            return batch
        if begun and self.position.batch == 0:
            raise agreed(DataError(f"the data ran out: pass {self.position.number + 1} gave no batch"))
        self._batches = None
        self.position.number += 1
        self.position.batch = 0
        return None


def whole_groups(steps: int | None, together: int) -> int | None:
    """Steps in groups of ``together`` (``steps_per_execution``): as in Keras, an epoch has no part of a group."""
    return None if steps is None else -(-steps // together) * together


def evaluation(
    source: Source, share: Share, size: int, steps: int | None, comm: Any, *, together: int = 1
) -> Iterator[tuple[int, Batch]]:
    """One pass, every sample of it, as (number of the batch, part): up to ``size`` rows at once over all replicas.

    With ``steps`` so many batches, in whole groups of ``together`` if there are enough.

    :raises DataError: if the data end before ``steps`` batches, or two ranks have read different data.
    """
    number, same, most = -1, SameData(comm, source), whole_groups(steps, together)
    for number, batch in enumerate(same.batches(source.begin(0, 0))):
        for part in share.parts(batch, min(size, share.filled(source.batch_size))):
            yield number, part
        if number + 1 == most:
            break
    same.check()
    if steps is not None and number + 1 >= steps:
        return
    if number < 0:
        raise agreed(DataError("the data ran out: no batch left to evaluate or predict"))
    if steps is not None:
        raise agreed(DataError(f"the data ran out after {number + 1} batches, and {steps} were asked for"))


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

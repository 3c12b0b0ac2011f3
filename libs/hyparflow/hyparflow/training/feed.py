"""The batches of a rank: its replica's share of each global batch, and a check that all ranks read the same data.

Every sample is used. A smaller batch is divided into smaller micro-batches of equal size; if its samples do not
suffice, the last one is repeated. Repeated samples count in no loss and no metric, and are removed from predictions.

An unseeded shuffle, or random numbers that each rank draws by itself, would spoil a training.
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

#: Bytes of a batch that are compared after the first batch of a pass, which is compared completely: at most 1 ms per
#: step.
SAMPLED = 2**20
_CURE = (
    "every rank must read the same global batches in the same order; seed what is random "
    "(keras.utils.set_random_seed, Dataset.shuffle(seed=...))"
)


@dataclass
class Position:
    """The position of the next global batch: batch ``batch`` of pass ``number`` through the data."""

    number: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Share:
    """The rows of every batch that a replica takes: the ``replica``-th of ``replicas`` contiguous shares.

    ``totals`` returns the totals of a whole batch, see ``hyparflow.backends.Portion``.
    """

    replica: int
    replicas: int
    micro_batches: int
    reads: Reads
    totals: Callable[[GlobalBatch], tuple[float, ...]]

    def filled(self, samples: int) -> int:
        """Return the minimum number of rows that can be shared equally and hold this number of samples."""
        shares = self.replicas * self.micro_batches
        return -(-samples // shares) * shares

    def parts(self, batch: GlobalBatch, size: int) -> Iterator[Batch]:
        """Yield this replica's rows of a batch, in steps of ``size`` rows over all replicas."""
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
    """Return the divisors of the losses of a batch, if they depend on more than its number of samples."""
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
        """Steps of an epoch, if known."""
        return self._source.batches if self._steps is None else self._steps

    def epoch(self, done: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch of which ``done`` are done, up to the end of the pass or ``steps_per_epoch``.

        As in Keras, a pass that ends before those steps ends the epoch with a warning.

        Raises:
            DataError: There are no batches, or one is larger than the first one.
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
        """Compare the data that the ranks have read since the last call, at the end of each epoch; collective.

        Raises:
            DataError: Two ranks have read different data.
        """
        self._same.check()

    def _next(self) -> GlobalBatch | None:
        """Return the next batch, None at the end of a pass."""
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
    """Round steps up to whole groups of ``together`` (``steps_per_execution``), as Keras does."""
    return None if steps is None else -(-steps // together) * together


def evaluation(
    source: Source, share: Share, size: int, steps: int | None, comm: Any, *, together: int = 1
) -> Iterator[tuple[int, Batch]]:
    """Yield the samples of one pass as (number of the batch, part).

    Args:
        source: The data.
        share: This replica's share.
        size: Maximum number of rows of a part, over all replicas.
        steps: Number of batches, None for all.
        comm: mpi4py's communicator of all ranks.
        together: Extend ``steps`` to whole groups of this size if there are enough batches (default: 1).

    Raises:
        DataError: The data end before ``steps`` batches, or two ranks have read different data.
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
        raise agreed(DataError(f"the data ran out after {number + 1} batches, but {steps} were requested"))


class SameData:
    """A check that the ranks of ``comm`` read the same data from a source.

    The first batch of a pass is compared before it is used, and the ends of passes of unknown length at once. Some rows
    of all other batches contribute to a checksum, which ``check`` compares.
    """

    def __init__(self, comm: Any, source: Source) -> None:
        self._comm = comm
        self._source = source
        self._digest = 0
        self._read = 0

    def batches(self, begun: Iterator[GlobalBatch]) -> Iterator[GlobalBatch]:
        """Yield the batches of a pass; collective at its start, and for each batch if their number is unknown.

        Raises:
            DataError: The first batches differ, or one rank's data end before another's; raised on all ranks.
        """
        for number, batch in enumerate(self._together(begun)):
            if number == 0:
                self._compare((batch.digest(), self._source.batches), "do not read the same data")
            else:
                self._digest = batch.digest(self._digest, SAMPLED)
            self._read += 1
            yield batch

    def check(self) -> None:
        """Compare all data read since the last call; collective.

        Raises:
            DataError: Two ranks have read different data; raised on all ranks.
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

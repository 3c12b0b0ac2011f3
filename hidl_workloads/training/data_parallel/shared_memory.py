"""Sums over the ranks of a node in the memory that they share, and between nodes by MPI.

Inside a node nothing is sent: the buffers lie in memory that all of the node's ranks see (``MPI_Win_allocate_shared``).
Each rank adds one share of the buffer over all ranks of its node; the ranks of the same number on all nodes add their
share over the network; and each rank copies the other shares out of its neighbours' buffers. ``place`` and ``collect``
do without a copy of the own share before the sum, and without one of the other shares after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request

SMALLEST_BYTES = 64 * 2**10
"""Below that MPI's own sum is faster than three barriers."""
_SHARED_MEMORY = "/dev/shm"
_ALIGNMENT = 64
_BLOCK = 2**16  # number of elements that are summed and scaled while they are in a core's own cache


class SharedMemoryAllreduce(Allreduce):
    """Sums over ``communicator``, whose every node has the ranks of one ``node`` communicator, equally many.

    ``between`` makes what sums over the ranks of the same number on all nodes; it is not called where there is only
    one node.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        node: MPI.Comm,
        between: Callable[[MPI.Comm], Allreduce] = Allreduce,
        *,
        share: float = 1,
        compressed: str = "",
    ) -> None:
        super().__init__(communicator, share, compressed)
        self._node = node.Dup()
        self._shared: dict[int, _Shared] = {}
        self._between: Allreduce | None = None
        if node.size < communicator.size:
            same_number = communicator.Split(node.rank, communicator.rank)
            self._between = between(same_number)
            same_number.Free()

    def buffer(self, size: int, dtype: str) -> NDArray[Any]:
        """Return a flat array of zeros that the node's other ranks can read; it lives until ``close``."""
        kind = np.dtype(dtype)
        if size * kind.itemsize < SMALLEST_BYTES:
            return super().buffer(size, dtype)
        # MPI may place the ranks' parts one after another, so each gets enough room to start at a multiple of 64 bytes.
        window = MPI.Win.Allocate_shared(size * kind.itemsize + _ALIGNMENT, 1, comm=self._node)
        window.Lock_all(MPI.MODE_NOCHECK)
        parts = [_view(window, rank, size, kind) for rank in range(self._node.size)]
        own: NDArray[Any] = parts[self._node.rank]
        own[:] = 0
        share = _shares(size, len(parts))[self._node.rank]
        self._shared[id(own)] = _Shared(own.ctypes.data, window, parts, share, np.empty(share.stop - share.start, kind))
        return own

    def steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Yield the requests for a buffer, or a part of one; between them this rank adds its share."""
        shared = self._find(total)
        if shared is None:
            yield from super().steps(total)
            return
        window, parts = shared
        own = _shares(len(total), len(parts))[self._node.rank]
        yield from self._reduce(total, window, parts, _blocks(total[own], own.start, {}))
        for share, part in zip(_shares(len(total), len(parts)), parts, strict=True):
            if part is not parts[self._node.rank]:
                total[share] = part[share]
        yield from self._barrier(window)  # the caller may only change its buffer after all ranks have read it

    def place(self, total: NDArray[Any], begin: int, addend: NDArray[Any]) -> None:
        """Put into shared memory what other ranks add up, and keep the rest where it is for this rank's share.

        This rank's share of the buffer, which others may still ``collect``, stays as it is: no barrier is needed.
        """
        shared = self._find_placed(total)
        if shared is None:
            super().place(total, begin, addend)
            return
        own, end = shared.own, begin + len(addend)
        for first, last in ((begin, min(end, own.start)), (max(begin, own.stop), end)):
            if first < last:
                np.copyto(total[first:last], addend[first - begin : last - begin])
        first, last = max(begin, own.start), min(end, own.stop)
        if first < last:
            shared.kept[first] = addend[first - begin : last - begin]

    def targets(self, total: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the shared memory before and behind this rank's share, and between them private memory for that."""
        shared = self._find_placed(total)
        if shared is None:
            return super().targets(total)
        return [total[: shared.own.start], shared.private, total[shared.own.stop :]]

    def sources(self, total: NDArray[Any]) -> list[NDArray[Any]]:
        """Return each rank's share in the memory of that rank."""
        shared = self._find_placed(total)
        if shared is None:
            return super().sources(total)
        return [part[share] for share, part in zip(_shares(len(total), len(shared.parts)), shared.parts, strict=True)]

    def placed_steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Return the requests for a buffer; at their end each rank's part holds the sums of its share alone."""
        shared = self._find_placed(total)
        if shared is None:
            return super().placed_steps(total)
        kept, shared.kept = shared.kept, {}
        return self._reduce(total, shared.window, shared.parts, _blocks(shared.private, shared.own.start, kept))

    def collect(self, total: NDArray[Any], begin: int, result: NDArray[Any]) -> None:
        """Copy sums out of the parts of the ranks whose shares they are."""
        shared = self._find_placed(total)
        if shared is None:
            super().collect(total, begin, result)
            return
        end = begin + len(result)
        for share, part in zip(_shares(len(total), len(shared.parts)), shared.parts, strict=True):
            first, last = max(begin, share.start), min(end, share.stop)
            if first < last:
                np.copyto(result[first - begin : last - begin], part[first:last])

    def _reduce(
        self,
        total: NDArray[Any],
        window: MPI.Win,
        parts: list[NDArray[Any]],
        addends: Iterator[tuple[int, NDArray[Any]]],
    ) -> Iterator[Request]:
        """Sum this rank's share of ``total``; ``addends`` yields this rank's own, each with its first element."""
        own = _shares(len(total), len(parts))[self._node.rank]
        yield from self._barrier(window)
        others = [parts[(self._node.rank + 1 + each) % len(parts)] for each in range(len(parts) - 1)]
        for begin, addend in addends:
            block = slice(begin, begin + len(addend))
            sums = addend
            for part in others:
                sums = np.add(sums, part[block], out=total[block])
            np.multiply(sums, self._share, out=total[block])
        if self._between is not None:
            yield from self._between.steps(total[own])
        yield from self._barrier(window)

    def close(self) -> None:
        """Give memory and communicators back; the arrays of ``buffer`` are gone then."""
        self.finish()
        for shared in self._shared.values():
            shared.window.Unlock_all()
            shared.window.Free()
        self._shared.clear()
        if self._between is not None:
            self._between.close()
        self._node.Free()
        super().close()

    def _find(self, total: NDArray[Any]) -> tuple[MPI.Win, list[NDArray[Any]]] | None:
        """Return the window that holds ``total``, and all ranks' parts of the same place; None: it is not shared."""
        for shared in self._shared.values():
            begin = (total.ctypes.data - shared.address) // total.itemsize
            if 0 <= begin < len(shared.parts[0]):
                return shared.window, [part[begin : begin + len(total)] for part in shared.parts]
        return None

    def _find_placed(self, total: NDArray[Any]) -> _Shared | None:
        """Return the memory of an array of ``buffer``; None if it is not shared, or checked and therefore gathered."""
        return None if self._compressed else self._shared.get(id(total))

    def _barrier(self, window: MPI.Win) -> Iterator[Request]:
        window.Sync()
        yield self._node.Ibarrier()
        window.Sync()


@dataclass
class _Shared:
    """An array of ``buffer``: its address, its window, and the parts of all ranks of the node.

    ``private`` has the addends of the share of this rank, ``own``, except those that are ``kept`` where they are, by
    the element they begin at.
    """

    address: int
    window: MPI.Win
    parts: list[NDArray[Any]]
    own: slice
    private: NDArray[Any]
    kept: dict[int, NDArray[Any]] = field(default_factory=dict)


def node_of(communicator: MPI.Comm) -> MPI.Comm:
    """Return the communicator of the ranks that share this rank's memory, in their order; collective."""
    return communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)


def spans_nodes(communicator: MPI.Comm, node: MPI.Comm) -> bool:
    """Return True if the ranks of ``communicator`` are on several nodes; collective, and equal on all ranks."""
    return bool(communicator.allreduce(int(node.size < communicator.size), MPI.MAX))


def usable(communicator: MPI.Comm, node: MPI.Comm, needed: int) -> bool:
    """Return True if all nodes have equally many ranks, two or more, and room for ``needed`` bytes each."""
    room = os.statvfs(_SHARED_MEMORY) if os.path.isdir(_SHARED_MEMORY) else None  # noqa: PTH112
    fits = room is not None and room.f_bavail * room.f_frsize > 1.2 * needed * node.size
    sizes = communicator.allgather(node.size if fits else 0)
    return bool(min(sizes) == max(sizes) > 1)


def _shares(size: int, ranks: int) -> list[slice]:
    """Cut ``size`` elements into one share for each rank, each beginning at a cache line of its own."""
    length = -(-size // ranks // _ALIGNMENT) * _ALIGNMENT
    return [slice(min(size, rank * length), min(size, (rank + 1) * length)) for rank in range(ranks)]


def _blocks(share: NDArray[Any], first: int, kept: dict[int, NDArray[Any]]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the addends of a share in order and in blocks, each with its first element in the buffer.

    Args:
        share: The addends.
        first: The element of the buffer at which the share begins.
        kept: Addends that replace those of ``share``, by the element of the buffer at which they begin.
    """
    position = first
    for begin, addend in [*sorted(kept.items(), key=lambda each: each[0]), (first + len(share), share[:0])]:
        for start, source in ((position, share[position - first : begin - first]), (begin, addend)):
            for offset in range(0, len(source), _BLOCK):
                yield start + offset, source[offset : offset + _BLOCK]
        position = begin + len(addend)


def _view(window: MPI.Win, rank: int, size: int, kind: np.dtype[Any]) -> NDArray[Any]:
    memory, _ = window.Shared_query(rank)
    raw = np.frombuffer(memory, np.uint8)
    # A rank's memory has different addresses in other processes, but the same offset from the start of a page.
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size * kind.itemsize].view(kind)

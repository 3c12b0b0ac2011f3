"""Sums over the ranks of a node in the memory that they share, and between nodes by MPI.

Inside a node nothing is sent: the buffers lie in memory that all of the node's ranks see (``MPI_Win_allocate_shared``).
Each rank adds one share of the buffer over all ranks of its node; the ranks of the same number on all nodes add their
share over the network; and each rank copies the other shares out of its neighbours' buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request

SMALLEST_BYTES = 64 * 2**10
"""Below that MPI's own sum is faster than three barriers."""
_SHARED_MEMORY = "/dev/shm"
_ALIGNMENT = 64
_BLOCK = 2**16  # elements that are added to and multiplied while they are in a core's own cache


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
        self._shared: dict[int, tuple[MPI.Win, list[NDArray[Any]]]] = {}
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
        # MPI may put the parts of all ranks one behind the other: each gets room to start at a multiple of 64 bytes.
        window = MPI.Win.Allocate_shared(size * kind.itemsize + _ALIGNMENT, 1, comm=self._node)
        window.Lock_all(MPI.MODE_NOCHECK)
        parts = [_view(window, rank, size, kind) for rank in range(self._node.size)]
        own: NDArray[Any] = parts[self._node.rank]
        own[:] = 0
        self._shared[own.ctypes.data] = (window, parts)
        return own

    def steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Yield the requests for a buffer, or a part of one; between them this rank adds its share."""
        shared = self._find(total)
        if shared is None:
            yield from super().steps(total)
            return
        window, parts = shared
        shares = _shares(len(total), len(parts))
        own = shares[self._node.rank]
        yield from self._barrier(window)
        others = [(self._node.rank + 1 + each) % len(parts) for each in range(len(parts) - 1)]  # not all read one first
        for begin in range(own.start, own.stop, _BLOCK):
            block = slice(begin, min(begin + _BLOCK, own.stop))
            for rank in others:
                np.add(total[block], parts[rank][block], out=total[block])
            np.multiply(total[block], self._share, out=total[block])
        if self._between is not None:
            yield from self._between.steps(total[own])
        yield from self._barrier(window)
        for rank in others:
            total[shares[rank]] = parts[rank][shares[rank]]
        yield from self._barrier(window)  # the caller may change its buffer only when all have read it

    def close(self) -> None:
        """Give memory and communicators back; the arrays of ``buffer`` are gone then."""
        self.finish()
        for window, _ in self._shared.values():
            window.Unlock_all()
            window.Free()
        self._shared.clear()
        if self._between is not None:
            self._between.close()
        self._node.Free()
        super().close()

    def _find(self, total: NDArray[Any]) -> tuple[MPI.Win, list[NDArray[Any]]] | None:
        """Return the window that holds ``total``, and all ranks' parts of the same place; None: it is not shared."""
        for address, (window, parts) in self._shared.items():
            begin = (total.ctypes.data - address) // total.itemsize
            if 0 <= begin < len(parts[0]):
                return window, [part[begin : begin + len(total)] for part in parts]
        return None

    def _barrier(self, window: MPI.Win) -> Iterator[Request]:
        window.Sync()
        yield self._node.Ibarrier()
        window.Sync()


def node_of(communicator: MPI.Comm) -> MPI.Comm:
    """Return the communicator of the ranks that share this rank's memory, in their order; collective."""
    return communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)


def spans_nodes(communicator: MPI.Comm, node: MPI.Comm) -> bool:
    """Whether any rank of ``communicator`` is on another node than others; collective, and equal on all ranks."""
    return bool(communicator.allreduce(int(node.size < communicator.size), MPI.MAX))


def usable(communicator: MPI.Comm, node: MPI.Comm, needed: int) -> bool:
    """Whether every node has equally many ranks, more than one, and room for ``needed`` bytes of each; collective."""
    room = os.statvfs(_SHARED_MEMORY) if os.path.isdir(_SHARED_MEMORY) else None  # noqa: PTH112
    fits = room is not None and room.f_bavail * room.f_frsize > 1.2 * needed * node.size
    sizes = communicator.allgather(node.size if fits else 0)
    return bool(min(sizes) == max(sizes) > 1)


def _shares(size: int, ranks: int) -> list[slice]:
    """Cut ``size`` elements into one share for each rank, each beginning at a cache line of its own."""
    length = -(-size // ranks // _ALIGNMENT) * _ALIGNMENT
    return [slice(min(size, rank * length), min(size, (rank + 1) * length)) for rank in range(ranks)]


def _view(window: MPI.Win, rank: int, size: int, kind: np.dtype[Any]) -> NDArray[Any]:
    memory, _ = window.Shared_query(rank)
    raw = np.frombuffer(memory, np.uint8)
    # The same rank's memory has other addresses in other processes, but at the same distance from a page's start.
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size * kind.itemsize].view(kind)

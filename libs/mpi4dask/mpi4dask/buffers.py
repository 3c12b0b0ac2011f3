"""Memory that messages are received into: host blocks that are used again, and GPU blocks.

A fresh block of many megabytes costs a page fault per page, as much as the transfer itself. Blocks that were freed
are therefore kept, up to a bound, for the next frame of their size class.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

try:
    import numpy
except ImportError:  # numpy is optional: without it blocks are zeroed first, and not used again
    numpy = None  # type: ignore[assignment]

POOLED_FROM = 64 * 1024  # smaller blocks come from malloc's own lists without page faults


class Pool:
    """Freed blocks by size class, at most `capacity` bytes of them; the oldest go first.

    Blocks come back from whatever thread drops the last reference, even in the middle of `take`: who finds the pool
    in use does without it, and nobody waits.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self._lock = threading.Lock()
        self._free: OrderedDict[int, Any] = OrderedDict()  # by id, in the order in which they came
        self._ids: dict[int, list[int]] = {}  # by size

    def take(self, size: int) -> Any:
        """A freed block of this size, or None."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            ids = self._ids.get(size)
            if not ids:
                return None
            self.held -= size
            return self._free.pop(ids.pop())
        finally:
            self._lock.release()

    def give(self, block: Any) -> None:
        """Keep a block, letting go of older ones where there are too many."""
        size = len(block)
        if size > self.capacity or not self._lock.acquire(blocking=False):
            return
        try:
            self._free[id(block)] = block
            self._ids.setdefault(size, []).append(id(block))
            self.held += size
            while self.held > self.capacity:
                key, oldest = self._free.popitem(last=False)
                self._ids[len(oldest)].remove(key)
                self.held -= len(oldest)
        finally:
            self._lock.release()


def size_class(size: int) -> int:
    """The block that serves `size` bytes: eight classes per power of two, so at most an eighth is wasted."""
    step = 1 << max((size - 1).bit_length() - 4, 12)
    return -(-size // step) * step


if numpy is not None:

    class _Block(numpy.ndarray):
        """A pooled block. An array that is made from a view's buffer refers to the object of that buffer, but passes
        over views to the array behind them where that is of its own type: of a plain array, the view would be given
        up, and the block come back while it is in use."""

    class _Pooled(numpy.ndarray):
        """A view of a pooled block that gives the block back when the last user has gone."""

        pool: Pool | None = None
        block: Any = None

        def __del__(self) -> None:
            if self.pool is not None:
                self.pool.give(self.block)


def host_block(size: int, pool: Pool) -> memoryview:
    """`size` writeable bytes of host memory, not initialised."""
    if numpy is None:
        return memoryview(bytearray(size))
    if size < POOLED_FROM or not pool.capacity:
        return numpy.empty(size, dtype="u1").data
    whole = size_class(size)
    block = pool.take(whole)
    if block is None:
        block = _Block(whole, dtype="u1")
    view = block[:size].view(_Pooled)
    view.pool, view.block = pool, block
    return memoryview(view)

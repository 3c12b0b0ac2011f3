"""Memory for received messages: reusable host blocks, and GPU blocks.

A new block of many megabytes costs a page fault per page, as much as the transfer itself. Freed blocks are therefore
kept, up to a limit, for the next frame of their size class.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

try:
    import numpy
except ImportError:  # numpy is optional: without it, blocks are zeroed first and not reused
    numpy = None  # type: ignore[assignment]

POOLED_FROM = 64 * 1024  # smaller blocks come from malloc's own free lists without page faults


class Pool:
    """Freed blocks by size class, at most `capacity` bytes in total; the oldest are dropped first.

    Any thread that drops the last reference returns a block, even in the middle of `take`. A caller that finds the pool
    locked goes on without it, so no thread ever waits.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self._lock = threading.Lock()
        self._free: OrderedDict[int, Any] = OrderedDict()  # by id, oldest first
        self._ids: dict[int, list[int]] = {}  # ids by size

    def take(self, size: int) -> Any:
        """Return a freed block of this size, or None."""
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
        """Keep a block, and drop the oldest ones if there are too many."""
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
    """Return the block size for `size` bytes: eight classes per power of two, so at most an eighth is wasted."""
    step = 1 << max((size - 1).bit_length() - 4, 12)
    return -(-size // step) * step


if numpy is not None:

    class _Block(numpy.ndarray):
        """A pooled block.

        An array made from a view's buffer refers to the owner of that buffer, but skips views whose base has its own
        type. With a plain array, the view would be released and the block reused while still in use.
        """

    class _Pooled(numpy.ndarray):
        """A view of a pooled block that returns the block to the pool when its last user is gone."""

        pool: Pool | None = None
        block: Any = None

        def __del__(self) -> None:
            if self.pool is not None:
                self.pool.give(self.block)


def host_block(size: int, pool: Pool) -> memoryview:
    """Return `size` writable, uninitialized bytes of host memory."""
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

"""Memory for messages: reusable host blocks for received frames, and packers that keep their buffers.

A new block of many megabytes costs a page fault per page, as much as the transfer itself. Freed blocks are therefore
kept, up to a limit, for the next frame of their size class.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgpack

try:
    import numpy
except ImportError:  # numpy is optional: without it, blocks are zeroed first and not reused
    numpy = None  # type: ignore[assignment]

POOLED_FROM = 64 * 1024  # smaller blocks come from malloc's own free lists without page faults
_PACKERS = 4  # packers kept
_GROWTH = 2  # factor by which the buffer of a packer may exceed its content


class Pool:
    """Freed blocks by size class, at most `capacity` bytes in total; the oldest are dropped first.

    Any thread that drops the last reference returns a block, even in the middle of `take`. A caller that finds the pool
    locked goes on without it, so no thread ever waits.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.packers = Packers(capacity)
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


class Packers:
    """Reusable msgpack packers, whose buffers together have at most half of `capacity` bytes.

    A large packed message is a view of its packer's buffer instead of a copy. The receiver may read it from there for
    as long as the view exists, and the packer cannot be used meanwhile. (A new bytes object would be freed after the
    next one has been created. glibc then returns the top of the heap to the kernel, and both cost a page fault per
    page again: 1,016 for every answer to a message of 2 MB.)
    """

    def __init__(self, capacity: int) -> None:
        self._largest = capacity // 2 // _PACKERS // _GROWTH
        self._free: deque[Packer] = deque()

    def pack(self, message: Any, default: Callable[[Any], Any]) -> Any:
        """Return the packed message, `bytes` or a read-only view; `default` converts objects unknown to msgpack."""
        packer = self._take()
        frame = packer.pack(message, default)
        if len(frame) <= self._largest and len(self._free) < _PACKERS:
            self._free.append(packer)
        return frame

    def _take(self) -> Packer:
        for _ in range(len(self._free)):
            try:
                packer = self._free.popleft()
            except IndexError:  # another thread took the last one
                break
            if packer.reset():
                return packer
            self._free.append(packer)
        return Packer()


class Packer:
    """A msgpack packer whose `default` can be different for each message."""

    def __init__(self) -> None:
        self._default: Callable[[Any], Any] | None = None
        self._packer = msgpack.Packer(default=self._convert, use_bin_type=True, autoreset=False)

    def reset(self) -> bool:
        """Empty the buffer; return False if a view of it still exists."""
        try:
            self._packer.reset()
        except BufferError:
            return False
        return True

    def pack(self, message: Any, default: Callable[[Any], Any]) -> Any:
        """Return the packed message: a view of the buffer, or `bytes` if it is small."""
        self._default = default
        try:
            self._packer.pack(message)
        finally:
            self._default = None
        view = self._packer.getbuffer()
        return view if len(view) >= POOLED_FROM else bytes(view)

    def _convert(self, obj: Any) -> Any:
        assert self._default is not None
        return self._default(obj)


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

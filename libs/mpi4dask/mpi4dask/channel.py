"""One connection's incoming messages, in order, and its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.comm import CommClosedError


class Message:
    """A message on its way in. `frames` is None until its last byte has arrived."""

    __slots__ = ("frames", "size")

    def __init__(self, size: int, frames: list[Any] | None = None) -> None:
        self.size = size
        self.frames = frames


class Channel:
    """The inbox of one connection. One reader at a time; all calls in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.inbox: deque[Message] = deque()
        self.unread = 0  # bytes of the messages here for which memory has been taken
        self.outgoing = 0  # large messages that have not gone out to the last byte
        self.closed = False  # by this end
        self.ended: CommClosedError | None = None
        self.on_space: Callable[[], None] | None = None
        self.on_quiet: Callable[[], None] | None = None  # called when it has ended, or has nothing more to send
        self._waiter: asyncio.Future[None] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._unheard = False

    def announce(self, message: Message) -> None:
        """Take a message into the inbox, complete or not."""
        self.inbox.append(message)
        if message.frames is not None:
            self.unread += message.size
            self.wake()

    def end(self, reason: CommClosedError) -> None:
        """Nothing more will come. What is complete can still be read; the rest is dropped."""
        if self.ended is None:
            self.ended = reason
            self.wake()
            if self.on_quiet is not None:
                self.on_quiet()

    def gone(self) -> None:
        """A large message has gone out, or never will."""
        self.outgoing -= 1
        if self.outgoing:
            return
        self._end_flush()
        if self.on_quiet is not None:
            self.on_quiet()

    def unheard(self) -> None:
        """The other end reads no more: what has not gone out is not waited for."""
        self._unheard = True
        self._end_flush()

    async def flushed(self) -> None:
        """Return when no large message waits to go out to somebody who reads it."""
        if self.outgoing and not self._unheard:
            self._flushed = self.loop.create_future()
            await self._flushed

    def _end_flush(self) -> None:
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)

    def drop(self) -> None:
        """Forget all messages: nobody will read them."""
        self.closed = True
        self.inbox.clear()
        self.unread = 0

    @property
    def ready(self) -> bool:
        """Whether `first()` or the end can be had without waiting."""
        return (bool(self.inbox) and self.inbox[0].frames is not None) or self.ended is not None

    def first(self) -> Message | None:
        """The oldest message if it is complete."""
        return self.inbox[0] if self.inbox and self.inbox[0].frames is not None else None

    def pop(self) -> None:
        """Remove the oldest message: it was read."""
        self.unread -= self.inbox.popleft().size
        if self.on_space is not None:
            self.on_space()

    async def wait(self) -> None:
        """Return when something may be ready."""
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""The incoming messages of one connection, in order, and its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed.comm import CommClosedError


class Message:
    """An incoming message. `frames` is None until its last byte has arrived."""

    __slots__ = ("frames", "size")

    def __init__(self, size: int, frames: list[Any] | None = None) -> None:
        self.size = size
        self.frames = frames


class Channel:
    """The inbox of one connection. It has one reader at a time, and all calls come from the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.inbox: deque[Message] = deque()
        self.unread = 0  # bytes of the messages here for which memory is allocated
        self.outgoing = 0  # large messages that have not been sent completely
        self.closed = False  # by this end
        self.ended: CommClosedError | None = None
        self.on_space: Callable[[], None] | None = None
        self.on_quiet: Callable[[], None] | None = None  # called when the channel has ended or has nothing more to send
        self._waiter: asyncio.Future[None] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._unheard = False

    def announce(self, message: Message) -> None:
        """Add a message to the inbox, complete or not."""
        self.inbox.append(message)
        if message.frames is not None:
            self.unread += message.size
            self.wake()

    def end(self, reason: CommClosedError) -> None:
        """End the channel: complete messages can still be read, the others are dropped."""
        if self.ended is None:
            self.ended = reason
            self.wake()
            if self.on_quiet is not None:
                self.on_quiet()

    def gone(self) -> None:
        """Note that a large message has been sent, or never will be."""
        self.outgoing -= 1
        if self.outgoing:
            return
        self._end_flush()
        if self.on_quiet is not None:
            self.on_quiet()

    def unheard(self) -> None:
        """Note that the other end has stopped reading, so that unsent messages are not waited for."""
        self._unheard = True
        self._end_flush()

    async def flushed(self) -> None:
        """Wait until no large message is left to send to a peer that still reads."""
        if self.outgoing and not self._unheard:
            self._flushed = self.loop.create_future()
            await self._flushed

    def _end_flush(self) -> None:
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)

    def drop(self) -> None:
        """Drop all messages; they will not be read."""
        self.closed = True
        self.inbox.clear()
        self.unread = 0

    @property
    def ready(self) -> bool:
        """True if `first()` or the end of the channel is available without waiting."""
        return (bool(self.inbox) and self.inbox[0].frames is not None) or self.ended is not None

    def first(self) -> Message | None:
        """Return the oldest message if it is complete."""
        return self.inbox[0] if self.inbox and self.inbox[0].frames is not None else None

    def pop(self) -> None:
        """Remove the oldest message after it was read."""
        self.unread -= self.inbox.popleft().size
        if self.on_space is not None:
            self.on_space()

    async def wait(self) -> None:
        """Wait until something may be ready."""
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Wake the reader."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

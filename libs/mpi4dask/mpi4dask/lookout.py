"""Looks that a sleeping engine takes although nobody has rung."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from mpi4dask.counters import counters

if TYPE_CHECKING:
    from mpi4dask.engine import Engine
    from mpi4dask.link import Link
    from mpi4dask.peer import Peer

FRESH = 0.001  # seconds for which what is known of who sleeps holds
SOON = 2 * FRESH  # seconds from falling asleep to the first look; each of the next ones takes twice as long
SAFETY = 1.0  # seconds, the longest; what a look found should have had its doorbell when that time has passed


class Lookout:
    """Of one engine, from its beginning until `close`.

    Our word that we sleep may be on its way when something is sent by an engine whose loop, or whose process, is held
    up then: it has no doorbell until that engine goes on. The looks find it after twice the time at most that has
    passed since we fell asleep.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        # When, whose, how many envelopes it had sent by then, and the connections over which it could ring.
        self._found: deque[tuple[float, Peer, int, tuple[Link, ...]]] = deque()
        self._look_after(SAFETY)

    def fell_asleep(self) -> None:
        """Look soon."""
        if self._delay > SOON:
            self._timer.cancel()
            self._look_after(SOON)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look_after(self, delay: float) -> None:
        self._delay = delay
        self._timer = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        """Look after the mail. What is found may have overtaken its doorbell: it counts as rescued where none was heard
        in the time after, although a connection lasted that long."""
        now = self._loop.time()
        while self._found and self._found[0][0] <= now - SAFETY:
            _, peer, received, links = self._found.popleft()
            if peer.announced < received and not peer.links.keys().isdisjoint(links):
                counters.rescues += 1
        before = [(peer, peer.received) for peer in self._engine.peers.values()]
        if self._engine.look():
            arrived = (peer for peer, known in before if peer.received > known)
            self._found.extend((now, peer, peer.received, tuple(peer.links)) for peer in arrived)
            self._engine.wake()
        self._look_after(min(2 * self._delay, SAFETY))

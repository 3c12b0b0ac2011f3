"""Looks that a sleeping engine takes although nobody has rung."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mpi4dask.counters import counters

if TYPE_CHECKING:
    from mpi4dask.engine import Engine
    from mpi4dask.peer import Peer

FRESH = 0.001  # seconds for which what is known of who sleeps holds
SAFETY = 1.0  # seconds between two looks of a sleeping engine; what they find should have had its doorbell


class Lookout:
    """Of one engine, from its beginning until `close`."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._unannounced: list[tuple[Peer, int]] = []  # envelopes that the last look found: received by then
        self._soon: asyncio.TimerHandle | None = None
        self._later = loop.call_later(SAFETY, self._look)

    def fell_asleep(self) -> None:
        """Look once more soon: our word that we sleep may have been on its way when something was sent by an engine
        whose loop was held up then."""
        if self._soon is None:
            self._soon = self._loop.call_later(2 * FRESH, self._look_soon)

    def close(self) -> None:
        """Look no more."""
        self._later.cancel()
        if self._soon is not None:
            self._soon.cancel()

    def _look_soon(self) -> None:
        self._soon = None
        if self._engine.look():
            self._engine.wake()

    def _look(self) -> None:
        """Look after the mail. What is found may just have overtaken its doorbell: it counts as rescued where none was
        heard by the next look."""
        for peer, received in self._unannounced:
            if peer.announced < received and peer.links:
                counters.rescues += 1
        known = [(peer, peer.received) for peer in self._engine.peers.values()]
        found = self._engine.look()
        self._unannounced = [(peer, peer.received) for peer, before in known if found and peer.received > before]
        if self._unannounced:
            self._engine.wake()
        self._later = self._loop.call_later(SAFETY, self._look)

"""The state that an engine keeps about another engine, and its looks for mail while it sleeps."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from distributed.comm import CommClosedError

from mpi4dask import wire
from mpi4dask.counters import counters
from mpi4dask.memory import Neighbour, Pull
from mpi4dask.transfers import Incoming, Outgoing

FRESH = 0.001  # seconds for which the knowledge of sleeping peers is valid
SOON = 2 * FRESH  # seconds from falling asleep to the first look; each further one takes twice as long
# Seconds, the longest interval between looks. A doorbell should arrive within this time after its message was found.
SAFETY = 1.0


class Connection(Protocol):
    """A connection to the other engine, over whose socket doorbells ring."""

    def ring(self, sent: int) -> None:
        """Ring the doorbell: ``sent`` envelopes have been sent."""

    def abort(self, reason: CommClosedError | None = None) -> None:
        """Close the connection at once."""

    def peer_died(self) -> None:
        """Close the connection because the process at the other end has died."""


class Peer:
    """A remote engine. All connections to it share one stream of envelopes, which MPI keeps in order.

    No wake-up is lost although envelopes and doorbells can overtake each other. `sent` and `received` count envelopes.

    - A doorbell carries `sent`; the woken engine polls until it has received that many.
    - If an engine never polls, or is believed to be asleep, each envelope to it is followed by a doorbell.
    - An engine that was rung announces when it falls asleep again, with `received`. The other end compares this with
      its `sent`, and rings at once if an envelope was still on its way.
    - This notice wakes no engine. An engine that falls asleep itself, and so may miss it, first rings for each envelope
      that had no doorbell; one that wakes up to send looks for the notice first. Until then it polls, and reads it.
    - If a connection ends after a doorbell was rung over it, the doorbell is rung again over another connection, or
      over the next one. A connection that is about to end, because this end has said goodbye, is used only if there is
      no other.

    If the sender's event loop is held up, it neither reads the notice nor rings. It therefore polls before it sends if
    its last poll is older than `FRESH`, and an engine that fell asleep looks for mail by itself (see `Lookout`).
    """

    def __init__(  # noqa: PLR0917
        self,
        comm: Any,
        here: int,
        uid: int,
        rank: int,
        tag: int,
        eager_size: int,
        spins: bool,
        neighbour: Neighbour | None,
    ) -> None:
        self.comm = comm
        self.here = here
        self.uid = uid
        self.rank = rank
        self.tag = tag
        self.eager_size = eager_size
        self.spins = spins
        self.neighbour = neighbour  # set if large frames are read from the other process's memory
        self.links: OrderedDict[Connection, None] = OrderedDict()  # doorbells use the last one
        self.rung_over: Connection | None = None
        self.owes_ring = False
        self.rung = 0  # the count in the last doorbell to the peer
        self.parts: list[Any] = []
        self.size = 0
        self.fresh = False  # an envelope was sent since the last poll, so the next records may share one
        self.in_flight: deque[tuple[Any, Any]] = deque()
        self.sent = 0
        self.received = 0
        self.announced = 0  # the count in the last doorbell from the peer
        self.asleep = True
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: list[Incoming] = []
        # By transfer: reads that the peer was asked to help with, until it confirms that it has stopped.
        self.helping: dict[int, Pull] = {}
        self.dead = False
        self.gone = False  # its engine has closed; the peer is forgotten with its last connection

    def put(self, kind: int, number: int, first: int, second: int, *parts: Any) -> None:
        """Add a record to the envelope, sending the envelope first if it is full.

        Args:
            kind: The kind of the record (see `wire`).
            number: Its number.
            first: Its first word.
            second: Its second word.
            parts: Data to append.
        """
        size = wire.RECORD.size
        for part in parts:
            size += len(part)
        if self.size + size > self.eager_size - wire.ENVELOPE.size:
            self.flush()
        self.parts.append(wire.RECORD.pack(kind, number, first, second))
        self.parts.extend(parts)
        self.size += size

    def flush(self, quiet: bool = False) -> None:
        """Send the current envelope, and wake the other engine if it may be asleep.

        A quiet envelope does not wake the peer and is not counted; the peer reads it before it sends something itself.
        """
        if not self.parts or self.dead:
            return
        head = wire.ENVELOPE.pack(self.uid, self.here, self.size + wire.ENVELOPE.size)
        envelope = b"".join((head, *self.parts))
        self.parts = []
        self.size = 0
        request = self.comm.Isend(envelope, self.rank, self.tag)
        counters.envelopes_sent += 1
        if self.in_flight or not request.Test():
            self.in_flight.append((request, envelope))
        if quiet:
            return
        self.sent += 1
        self.fresh = True
        if self.asleep or not self.spins:
            self.ring()

    def ring(self) -> None:
        """Ring the doorbell over the newest connection that stays open."""
        self.rung_over = next(reversed(self.links), None)
        self.owes_ring = self.rung_over is None
        if self.rung_over is not None:
            self.asleep = False
            self.rung = self.sent
            counters.wakeups_sent += 1
            self.rung_over.ring(self.sent)

    def add_link(self, link: Connection) -> None:
        """Add a connection to the engine."""
        self.links[link] = None
        if self.owes_ring:
            self.ring()

    def said_goodbye(self, link: Connection) -> None:
        """Stop preferring a connection whose other end may close it and miss doorbells."""
        if link in self.links:
            self.links.move_to_end(link, last=False)

    def drop_link(self, link: Connection) -> None:
        """Remove a connection that has ended; if its last doorbell may be lost, ring over another one."""
        if self.links.pop(link, self) is None and link is self.rung_over and not self.dead:
            self.ring()

    def fell_asleep(self, seen: int) -> None:
        """Note that the other engine sleeps, and had received `seen` envelopes. The notice is a quiet envelope."""
        self.received -= 1
        self.asleep = True
        if self.sent > seen:
            self.ring()

    def say_gone(self) -> None:
        """Tell the other engine, after all else and without waking it, that this engine has closed."""
        if self.size + 2 * wire.RECORD.size > self.eager_size - wire.ENVELOPE.size:
            self.flush(quiet=True)
        self.put(wire.GONE, 0, 0, 0)
        self.flush(quiet=True)

    def has_gone(self) -> None:
        """Note that the other engine has closed. The notice is a quiet envelope."""
        self.received -= 1
        self.gone = True

    def progress_sends(self) -> bool:
        """Release envelopes that have been sent; return whether any are left."""
        while self.in_flight and self.in_flight[0][0].Test():
            self.in_flight.popleft()
        return bool(self.in_flight)

    @property
    def busy(self) -> bool:
        """True if MPI has work to do for this peer."""
        if self.in_flight or self.incoming or self.parts or self.received < self.announced:
            return True
        if not self.outgoing:
            return False
        return any(
            transfer.tag >= 0 or transfer.push is not None or transfer.channel.closed
            for transfer in self.outgoing.values()
        )


class Lookout:
    """Scheduled looks of a sleeping engine for mail without a doorbell.

    Our notice that we sleep may still be on its way when an engine sends something and its loop, or its process, is
    then held up: the doorbell is missing until that engine continues. A look finds the message after at most twice the
    time that has passed since we fell asleep.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peers: Mapping[int, Peer],
        poll: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._peers = peers
        self._poll = poll
        self._wake = wake
        # Time, peer, number of envelopes that it had sent, and the connections over which it could ring.
        self._found: deque[tuple[float, Peer, int, tuple[Connection, ...]]] = deque()
        self._look_after(SAFETY)

    def fell_asleep(self) -> None:
        """Look soon, because the engine has just fallen asleep."""
        if self._delay > SOON:
            self._timer.cancel()
            self._look_after(SOON)

    def close(self) -> None:
        """Cancel all further looks."""
        self._timer.cancel()

    def _look_after(self, delay: float) -> None:
        self._delay = delay
        self._timer = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        """Look for mail.

        A message that is found may have overtaken its doorbell. It counts as rescued if no doorbell arrived within
        `SAFETY` although a connection existed all that time.
        """
        now = self._loop.time()
        while self._found and self._found[0][0] <= now - SAFETY:
            _, peer, received, links = self._found.popleft()
            if peer.announced < received and not peer.links.keys().isdisjoint(links):
                counters.rescues += 1
        before = [(peer, peer.received) for peer in self._peers.values()]
        if self._poll():
            arrived = (peer for peer, known in before if peer.received > known)
            self._found.extend((now, peer, peer.received, tuple(peer.links)) for peer in arrived)
            self._wake()
        self._look_after(min(2 * self._delay, SAFETY))

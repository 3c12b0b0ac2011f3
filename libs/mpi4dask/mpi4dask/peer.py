"""What an engine knows of another engine: where its envelopes go, what waits for it, and whether it sleeps."""

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

FRESH = 0.001  # seconds for which what is known of who sleeps holds
SOON = 2 * FRESH  # seconds from falling asleep to the first look; each of the next ones takes twice as long
SAFETY = 1.0  # seconds, the longest; what a look found should have had its doorbell when that time has passed


class Connection(Protocol):
    """A connection to the other engine, over whose socket doorbells ring."""

    def ring(self, sent: int) -> None:
        """Ring the doorbell: ``sent`` envelopes have been sent."""

    def abort(self, reason: CommClosedError | None = None) -> None:
        """Close the connection at once."""

    def peer_died(self) -> None:
        """Close the connection because the process at the other end has died."""


class Peer:
    """One remote engine. All its connections share one stream of envelopes, which MPI keeps in order.

    Why no wake-up is lost, although envelopes and doorbells overtake each other. `sent` and `received` count envelopes.

    - A doorbell carries `sent`; the woken engine polls until it has received as many.
    - To an engine that never polls, and to one that is believed to be asleep, each envelope is followed by a doorbell.
    - An engine that was rung says so when it falls asleep again, with `received`. The other end compares it with its
      `sent`, and rings at once where an envelope was still on its way.
    - That word wakes nobody. An engine that falls asleep itself, and so may miss it, first rings for every envelope
      that had no doorbell; one that wakes to send something looks for it first. Until then it polls, and reads it.
    - A doorbell that was rung over a connection which then ended is rung again over another, or over the next one. Over
      one that is about to end, because this end has said goodbye, it is rung only where there is no other.

    Where the sender's event loop is held up, it neither reads that word nor rings. So it polls before it sends, if its
    last poll was longer ago than `FRESH`, and an engine that fell asleep looks by itself, as `Lookout` says.
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
        self.neighbour = neighbour  # where large frames are read straight from the other process's memory
        self.links: OrderedDict[Connection, None] = OrderedDict()  # the last one is rung over
        self.rung_over: Connection | None = None
        self.owes_ring = False
        self.rung = 0  # what the last doorbell said
        self.parts: list[Any] = []
        self.size = 0
        self.fresh = False  # whether an envelope went out since the last poll: then the next records may share one
        self.in_flight: deque[tuple[Any, Any]] = deque()
        self.sent = 0
        self.received = 0
        self.announced = 0  # what its last doorbell said that it had sent
        self.asleep = True
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: list[Incoming] = []
        self.helping: dict[int, Pull] = {}  # by transfer: what it was asked to help with, until it looks no more
        self.dead = False
        self.gone = False  # its engine has closed; the peer is forgotten with its last connection

    def put(self, kind: int, number: int, first: int, second: int, *parts: Any) -> None:
        """Add a record; an envelope that is full goes out."""
        size = wire.RECORD.size
        for part in parts:
            size += len(part)
        if self.size + size > self.eager_size - wire.ENVELOPE.size:
            self.flush()
        self.parts.append(wire.RECORD.pack(kind, number, first, second))
        self.parts.extend(parts)
        self.size += size

    def flush(self, quiet: bool = False) -> None:
        """Send what has gathered, and wake the other engine where it may sleep.

        A quiet envelope wakes nobody and is not counted: it is read before the other engine sends something itself.
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
        """Ring the doorbell, over the youngest connection to that engine that stays."""
        self.rung_over = next(reversed(self.links), None)
        self.owes_ring = self.rung_over is None
        if self.rung_over is not None:
            self.asleep = False
            self.rung = self.sent
            counters.wakeups_sent += 1
            self.rung_over.ring(self.sent)

    def add_link(self, link: Connection) -> None:
        """A connection to that engine."""
        self.links[link] = None
        if self.owes_ring:
            self.ring()

    def said_goodbye(self, link: Connection) -> None:
        """The other end of that connection may hang up, and hear no more doorbells."""
        if link in self.links:
            self.links.move_to_end(link, last=False)

    def drop_link(self, link: Connection) -> None:
        """A connection has ended, maybe before the doorbell was heard that was rung over it: ring over another."""
        if self.links.pop(link, self) is None and link is self.rung_over and not self.dead:
            self.ring()

    def fell_asleep(self, seen: int) -> None:
        """The other engine sleeps, and had `seen` envelopes from us by then. This came in a quiet envelope."""
        self.received -= 1
        self.asleep = True
        if self.sent > seen:
            self.ring()

    def say_gone(self) -> None:
        """Tell the other engine that this one has closed, after all else, without waking it: it looks by itself."""
        if self.size + 2 * wire.RECORD.size > self.eager_size - wire.ENVELOPE.size:
            self.flush(quiet=True)
        self.put(wire.GONE, 0, 0, 0)
        self.flush(quiet=True)

    def has_gone(self) -> None:
        """The other engine has closed. This came in a quiet envelope."""
        self.received -= 1
        self.gone = True

    def progress_sends(self) -> bool:
        """Let go of envelopes that have gone; return whether some have not."""
        while self.in_flight and self.in_flight[0][0].Test():
            self.in_flight.popleft()
        return bool(self.in_flight)

    @property
    def busy(self) -> bool:
        """Whether MPI has something to do for this peer."""
        if self.in_flight or self.incoming or self.parts or self.received < self.announced:
            return True
        if not self.outgoing:
            return False
        return any(
            transfer.tag >= 0 or transfer.push is not None or transfer.channel.closed
            for transfer in self.outgoing.values()
        )


class Lookout:
    """Of one engine, from its beginning until `close`.

    Our word that we sleep may be on its way when something is sent by an engine whose loop, or whose process, is held
    up then: it has no doorbell until that engine goes on. The looks find it after twice the time at most that has
    passed since we fell asleep.
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
        # When, whose, how many envelopes it had sent by then, and the connections over which it could ring.
        self._found: deque[tuple[float, Peer, int, tuple[Connection, ...]]] = deque()
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
        before = [(peer, peer.received) for peer in self._peers.values()]
        if self._poll():
            arrived = (peer for peer, known in before if peer.received > known)
            self._found.extend((now, peer, peer.received, tuple(peer.links)) for peer in arrived)
            self._wake()
        self._look_after(min(2 * self._delay, SAFETY))

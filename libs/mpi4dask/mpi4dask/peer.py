"""What an engine knows of another engine: where its envelopes go, what waits for it, and whether it sleeps."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from mpi4dask import records
from mpi4dask.counters import counters
from mpi4dask.direct import Neighbour

if TYPE_CHECKING:
    from mpi4dask.both_ends import Pull
    from mpi4dask.link import Link
    from mpi4dask.transfers import Incoming, Outgoing


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
    last poll was longer ago than `lookout.FRESH`, and an engine that fell asleep looks by itself, as `Lookout` says.
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
        self.links: OrderedDict[Link, None] = OrderedDict()  # the last one is rung over
        self.rung_over: Link | None = None
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
        size = records.RECORD.size
        for part in parts:
            size += len(part)
        if self.size + size > self.eager_size - records.ENVELOPE.size:
            self.flush()
        self.parts.append(records.RECORD.pack(kind, number, first, second))
        self.parts.extend(parts)
        self.size += size

    def flush(self, quiet: bool = False) -> None:
        """Send what has gathered, and wake the other engine where it may sleep.

        A quiet envelope wakes nobody and is not counted: it is read before the other engine sends something itself.
        """
        if not self.parts or self.dead:
            return
        head = records.ENVELOPE.pack(self.uid, self.here, self.size + records.ENVELOPE.size)
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

    def add_link(self, link: Link) -> None:
        """A connection to that engine."""
        self.links[link] = None
        if self.owes_ring:
            self.ring()

    def said_goodbye(self, link: Link) -> None:
        """The other end of that connection may hang up, and hear no more doorbells."""
        if link in self.links:
            self.links.move_to_end(link, last=False)

    def drop_link(self, link: Link) -> None:
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
        if self.size + 2 * records.RECORD.size > self.eager_size - records.ENVELOPE.size:
            self.flush(quiet=True)
        self.put(records.GONE, 0, 0, 0)
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

"""The progress engine: one per event loop, it moves everything that goes over MPI.

Awake, it polls: in the loop's own turns, and inside `Comm.read` for as long as the loop has nothing else to do. With
nothing to do it sleeps, which costs nothing, until a byte on one of its sockets wakes it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from typing import Any

from mpi4dask import memory, wire
from mpi4dask.buffers import Pool
from mpi4dask.channel import Channel
from mpi4dask.configuration import Settings
from mpi4dask.counters import counters
from mpi4dask.errors import HandshakeError, ProtocolError
from mpi4dask.mail import LargeMessages, Mail
from mpi4dask.peer import FRESH, Lookout, Peer
from mpi4dask.spin import Spinner
from mpi4dask.world import World

logger = logging.getLogger("mpi4dask")

YIELDING_POLLS = 200  # polls that give way to other processes before the pauses between polls grow
PAUSE = 0.001
AT_ONCE = 8000  # bytes of an envelope that MPI takes from the sender at once; MPICH through shared memory, below 8 KiB


class Engine:
    """Moves messages between this loop and other engines. All methods run in the loop's thread."""

    def __init__(self, world: World, tag: int, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        from mpi4py import MPI

        self.world = world
        self.comm = world.comm
        self.tag = tag
        self.loop = loop
        self.settings = settings
        self.uid = secrets.randbits(63)
        self.pool = Pool(settings.buffer_pool)
        spin = settings.spin if settings.spin is not None else settings.spin_time * world.polling_pays
        self.spin = spin
        self._spinner = Spinner(spin)
        self.peers: dict[int, Peer] = {}
        self._numbers = itertools.count(1)
        self._slots = [bytearray(settings.eager_size) for _ in range(settings.eager_slots)]
        self._views = [memoryview(slot) for slot in self._slots]
        self._requests = [self.comm.Recv_init([slot, MPI.BYTE], source=MPI.ANY_SOURCE, tag=tag) for slot in self._slots]
        MPI.Prequest.Startall(self._requests)
        self._head = 0
        self._large = LargeMessages(world, settings, self.pool, self._numbers, self._answer, self._has_work)
        self._mail = Mail(self._large)
        self._unflushed: dict[Peer, None] = {}
        self._busy: dict[Peer, None] = {}
        self._sent_to: dict[Peer, None] = {}
        self._awake_for: dict[Peer, None] = {}
        self._awake = False
        self._idle_polls = 0
        self._polled_at = 0.0
        self._active_until = 0.0
        self._tick_handle: asyncio.Handle | None = None
        self._pause_handle: asyncio.Handle | None = None
        self._closed = False
        self._ready: Any = getattr(loop, "_ready", None)
        self._lost: set[int] = set()
        self._lookout = Lookout(loop, self.peers, self.look, self.wake)

    # Connections

    def meet(self, uid: int, rank: int, tag: int, eager_size: int, spins: bool) -> Peer:
        """The peer of that name, new if it was not known; raise HandshakeError for one that was lost.

        The two would not agree any more on how many envelopes they have sent each other.
        """
        if uid in self._lost:
            raise HandshakeError(f"rank {rank} was taken for dead, and its envelopes were given up")
        peer = self.peers.get(uid)
        if peer is None:
            size = min(eager_size, self.settings.eager_size)
            neighbour = self.neighbour(rank)
            peer = self.peers[uid] = Peer(self.comm, self.uid, uid, rank, tag, size, spins, neighbour)
        return peer

    def neighbour(self, rank: int) -> memory.Neighbour | None:
        """How to read that rank's memory; None where that cannot or shall not be done."""
        place = self.world.places.get(rank)
        return memory.Neighbour(place) if place is not None else None

    def new_number(self) -> int:
        """A name for a connection, which is never used again."""
        return next(self._numbers)

    def open_channel(self, number: int, channel: Channel) -> None:
        """From now on, what comes for this number goes to this inbox."""
        self._mail.open(number, channel)

    def close_channel(self, number: int) -> None:
        """Nobody reads this inbox any more; what still comes for it is received and dropped."""
        self._mail.close(number)

    @property
    def open_channels(self) -> int:
        """How many inboxes are open."""
        return len(self._mail.channels)

    def lose(self, peer: Peer) -> None:
        """The peer's process has died: nothing of it is waited for any more."""
        if peer.dead:
            return
        peer.dead = True
        self._lost.add(peer.uid)
        self._forget(peer)
        for link in list(peer.links):
            link.peer_died()

    def part(self, peer: Peer) -> None:
        """Forget a peer whose engine has closed, once no connection to it is left; it does not come back."""
        if peer.gone and not peer.links and not peer.dead:
            peer.dead = True
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        self.peers.pop(peer.uid, None)
        for table in (self._unflushed, self._busy, self._awake_for, self._sent_to):
            table.pop(peer, None)
        self._large.forget(peer)

    # Sending

    def send(self, peer: Peer, channel: Channel, remote: int, frames: list[Any]) -> int:
        """Send a message; never waits. Return its size in bytes."""
        self._learn_who_sleeps()
        # What MPI does not take at once both ends have to work on: where they get no core, it is better read by one.
        whole = min(peer.eager_size, AT_ONCE) if peer.neighbour and self._spinner.crowded else peer.eager_size
        limit = whole - wire.ENVELOPE.size - wire.CONTROL_SIZE
        layout = wire.lay_out(frames, limit)
        if not layout.alone and layout.packed_size <= limit:
            peer.put(wire.MESSAGE, layout.nframes, remote, layout.packed_size, *layout.packed)
        else:
            self._large.announce(peer, channel, remote, layout, limit)
            self._spinner.sent(layout.size)
        self._flush_soon(peer)
        counters.messages_sent += 1
        counters.bytes_sent += layout.size
        counters.mpi_bytes_sent += layout.size
        return layout.size

    def send_close(self, peer: Peer, remote: int) -> None:
        """Tell the peer that nothing more comes on this channel, behind all that was sent before."""
        self._learn_who_sleeps()
        if not peer.dead:
            peer.put(wire.CLOSED, 0, remote, 0)
            peer.flush()
            self._unflushed[peer] = None  # to forget its freshness
            self._keep(peer)
            self.wake()

    def _learn_who_sleeps(self) -> None:
        """Poll before something is sent, where the last poll was before a sleep, or the loop was held up since."""
        if not self._awake or time.perf_counter() - self._polled_at > FRESH:
            self._poll()

    def _flush_soon(self, peer: Peer) -> None:
        """The first message since the last poll goes out at once; those right behind it share envelopes."""
        if not peer.fresh:
            peer.flush()
        self._unflushed[peer] = None  # also to forget its freshness
        self._keep(peer)
        self.wake()

    def _keep(self, peer: Peer) -> None:
        self._sent_to[peer] = None
        if peer.busy:
            self._busy[peer] = None

    # Waking and sleeping

    def wake(self) -> None:
        """Poll from the loop's next turn on."""
        if self._rise() or self._end_pause():
            self._schedule(0.0)

    def _rise(self) -> bool:
        """Be awake from now on; return whether that is new."""
        self._idle_polls = 0
        self._active_until = self._spinner.until()
        rises = not self._awake
        self._awake = True
        return rises

    def rung(self, peer: Peer, sent: int) -> None:
        """The peer's doorbell: it has sent `sent` envelopes by now and believes us to be awake."""
        counters.wakeups_received += 1
        if not peer.dead:
            peer.announced = max(peer.announced, sent)
            self._awake_for[peer] = None
            self._keep(peer)
        if self._rise() or self._end_pause():
            self._tick()  # a turn of the loop sooner than `wake`

    def spin_for(self, channel: Channel) -> None:
        """Poll without giving way to the loop until the channel is ready, the loop has work, or time is up."""
        if not self.spin or self._ready is None or self._closed:
            return
        ready = self._ready
        handles = 1 if self._tick_handle is not None else 0
        poll, clock, spinner = self._poll, time.perf_counter, self._spinner
        before = clock()
        while before < self._active_until and not channel.ready and len(ready) <= handles:
            if poll():
                before = clock()
                continue
            counters.spins += 1
            now = clock()
            spinner.polled(before, now)
            before = now

    def _schedule(self, delay: float) -> None:
        self._tick_handle = None if delay else self.loop.call_soon(self._tick)
        self._pause_handle = self.loop.call_later(delay, self._tick) if delay else None

    def _end_pause(self) -> bool:
        """Return whether the next poll was only to come after a pause; it does not come then."""
        if self._pause_handle is None:
            return False
        self._pause_handle.cancel()
        self._pause_handle = None
        return True

    def _tick(self) -> None:
        self._tick_handle = self._pause_handle = None
        if self._closed:
            return
        if self._poll():
            self._idle_polls = 0
        else:
            self._idle_polls += 1
            counters.spins += 1
        if not self._busy and not self._unflushed and time.perf_counter() >= self._active_until:
            self._sleep()
            return
        if time.perf_counter() < self._active_until:
            self._schedule(0.0)
        else:  # MPI has something to do, and others want the core
            pays = not self._idle_polls or (self._idle_polls < YIELDING_POLLS and self._spinner.give_way())
            self._schedule(0.0 if pays else PAUSE)

    def _sleep(self) -> None:
        counters.sleeps += 1
        for peer in self._sent_to:  # its word that it sleeps may cross what we sent: every envelope gets its doorbell
            if peer.sent > peer.rung and not peer.dead:
                peer.ring()
        self._sent_to.clear()
        if self._active_until:
            self._spinner.calm()
        if self.spin:
            for peer in self._awake_for:
                peer.flush()
                peer.put(wire.ASLEEP, 0, peer.received, 0)
                peer.flush(quiet=True)
                self._keep(peer)
            if self._awake_for:
                self._lookout.fell_asleep()
            self._awake_for.clear()
        if self._busy:
            self._schedule(0.0)
        else:
            self._awake = False

    def look(self) -> bool:
        """Poll although nobody has rung; return whether that found something."""
        return not self._awake and not self._closed and self._poll()

    # Progress

    def _poll(self) -> bool:
        """Move everything as far as it goes now; return whether something moved."""
        moved = False
        self._polled_at = time.perf_counter()
        if self._unflushed:
            for peer in self._unflushed:
                if peer.parts:
                    peer.flush()
                    moved = True
                    if peer.in_flight:
                        self._busy[peer] = None
                peer.fresh = False
            self._unflushed.clear()
        while self._requests[self._head].Test():
            moved = True
            self._receive(self._head)
            self._head = (self._head + 1) % len(self._requests)
        if self._busy:
            moved |= self._progress_busy()
        if moved:
            self._active_until = self._spinner.until()
        return moved

    def _receive(self, slot: int) -> None:
        view = self._views[slot]
        to, sender, size = wire.ENVELOPE.unpack_from(view)
        peer = self.peers.get(sender)
        if peer is not None and to == self.uid:  # else of or for one who died
            peer.received += 1
            counters.envelopes_received += 1
            try:
                if self._mail.read(peer, view[:size]):
                    self._busy[peer] = None
            except Exception as exc:
                logger.exception("Lost step with rank %d; closing its connections", peer.rank)
                self._distrust(peer, exc)
            self.part(peer)
        self._requests[slot].Start()

    def _distrust(self, peer: Peer, exc: Exception) -> None:
        reason = ProtocolError(f"rank {peer.rank} sent what cannot be read: {exc}")
        for link in list(peer.links):
            self.loop.call_soon(link.abort, reason)  # not in the middle of a poll

    def _progress_busy(self) -> bool:
        moved = False
        for peer in list(self._busy):
            if peer.in_flight:
                peer.progress_sends()
            if peer.outgoing or peer.incoming:
                moved |= self._large.progress(peer)
            if not peer.busy:
                self._busy.pop(peer, None)
        return moved

    def _answer(self, peer: Peer, kind: int, number: int, transfer: int) -> None:
        peer.put(kind, number, transfer, 0)
        if kind != wire.RELEASED:  # nobody waits for that: it goes along with an answer, or with the next poll
            peer.flush()
        self._unflushed[peer] = self._sent_to[peer] = None
        self._has_work(peer)

    def _has_work(self, peer: Peer) -> None:
        self._busy[peer] = None
        self.wake()

    # The end

    def close(self, *, tell: bool) -> None:
        """Give the tag and the receives back; ``tell`` the peers, so that they forget this engine.

        Only where no connection is left.
        """
        if self._closed:
            return
        self._closed = True
        self._lookout.close()
        for peer in self.peers.values():
            if tell:
                peer.say_gone()
            self._large.keep_memory(peer)
        for request in self._requests:
            request.Cancel()
            request.Wait()
            request.Free()
        self.world.give_engine_tag(self.tag)

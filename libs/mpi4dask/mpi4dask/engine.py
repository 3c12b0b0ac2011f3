"""The progress engine, one per event loop, which moves all data that goes over MPI.

While awake it polls: in turns of the loop, and inside `Comm.read` while the loop is otherwise idle. Without work it
sleeps, at no cost, until a byte on one of its sockets wakes it.
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

YIELDING_POLLS = 200  # polls that yield to other processes before the engine pauses between polls
PAUSE = 0.001
AT_ONCE = 8000  # bytes of an envelope that MPI accepts at once; MPICH's shared-memory limit is just below 8 KiB


class Engine:
    """The engine that moves messages between this loop and other engines. All methods run in the loop's thread."""

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
        """Return the peer of that name, creating it on first use.

        Args:
            uid: The name of the other engine.
            rank: Its rank.
            tag: The tag of its envelopes.
            eager_size: Its maximum size of an envelope.
            spins: It polls, and may not need doorbells.

        Raises:
            HandshakeError: The peer was lost before. Both ends would disagree about how many envelopes were sent.
        """
        if uid in self._lost:
            raise HandshakeError(f"rank {rank} was considered dead, and its envelopes were discarded")
        peer = self.peers.get(uid)
        if peer is None:
            size = min(eager_size, self.settings.eager_size)
            neighbour = self.neighbour(rank)
            peer = self.peers[uid] = Peer(self.comm, self.uid, uid, rank, tag, size, spins, neighbour)
        return peer

    def neighbour(self, rank: int) -> memory.Neighbour | None:
        """Return access to the memory of that rank, or None if it is impossible or disabled."""
        place = self.world.places.get(rank)
        return memory.Neighbour(place) if place is not None else None

    def new_number(self) -> int:
        """Return a new name for a connection; names are never reused."""
        return next(self._numbers)

    def open_channel(self, number: int, channel: Channel) -> None:
        """Deliver messages for this number to this inbox from now on."""
        self._mail.open(number, channel)

    def close_channel(self, number: int) -> None:
        """Close the inbox; later messages for it are received and dropped."""
        self._mail.close(number)

    @property
    def open_channels(self) -> int:
        """The number of open inboxes."""
        return len(self._mail.channels)

    def lose(self, peer: Peer) -> None:
        """Treat the peer's process as dead, and stop waiting for it."""
        if peer.dead:
            return
        peer.dead = True
        self._lost.add(peer.uid)
        self._forget(peer)
        for link in list(peer.links):
            link.peer_died()

    def part(self, peer: Peer) -> None:
        """Forget a peer whose engine has closed, once it has no connection left."""
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
        """Send a message without waiting, and return its size in bytes.

        Args:
            peer: The receiving engine.
            channel: The channel of the connection at this end.
            remote: The number of the connection at the other end.
            frames: The frames of the message.
        """
        self._learn_who_sleeps()
        # Both ends must work on messages that MPI does not accept at once. If cores are scarce, reading by one end is
        # better.
        whole = min(peer.eager_size, AT_ONCE) if peer.neighbour and self._spinner.crowded else peer.eager_size
        limit = whole - wire.ENVELOPE.size - wire.CONTROL_SIZE
        layout = wire.lay_out(frames, limit)
        if not layout.alone and layout.packed_size <= limit:
            peer.put(wire.MESSAGE, layout.nframes, remote, layout.packed_size, *layout.packed)
            self._spinner.sent()
        else:
            self._large.announce(peer, channel, remote, layout, limit)
            self._spinner.sent(layout.size)
        self._flush_soon(peer)
        counters.messages_sent += 1
        counters.bytes_sent += layout.size
        counters.mpi_bytes_sent += layout.size
        return layout.size

    def send_close(self, peer: Peer, remote: int) -> None:
        """Tell the peer, after all earlier messages, that this channel has ended."""
        self._learn_who_sleeps()
        if not peer.dead:
            peer.put(wire.CLOSED, 0, remote, 0)
            peer.flush()
            self._unflushed[peer] = None  # so that the next poll resets `fresh`
            self._keep(peer)
            self.wake()

    def _learn_who_sleeps(self) -> None:
        """Poll before sending if the engine was asleep, or if its last poll is older than `FRESH`."""
        if not self._awake or time.perf_counter() - self._polled_at > FRESH:
            self._poll()

    def _flush_soon(self, peer: Peer) -> None:
        """Send the first message since the last poll at once; messages right after it share envelopes."""
        if not peer.fresh:
            peer.flush()
        self._unflushed[peer] = None  # so that the next poll resets `fresh`
        self._keep(peer)
        self.wake()

    def _keep(self, peer: Peer) -> None:
        self._sent_to[peer] = None
        if peer.busy:
            self._busy[peer] = None

    # Waking and sleeping

    def wake(self) -> None:
        """Poll from the next turn of the loop on."""
        if self._rise() or self._end_pause():
            self._schedule(0.0)

    def _rise(self) -> bool:
        """Wake the engine; return whether it was asleep."""
        self._idle_polls = 0
        self._active_until = self._spinner.until()
        rises = not self._awake
        self._awake = True
        return rises

    def rung(self, peer: Peer, sent: int) -> None:
        """Handle the peer's doorbell: it has sent `sent` envelopes so far and assumes that this engine is awake."""
        counters.wakeups_received += 1
        if not peer.dead:
            peer.announced = max(peer.announced, sent)
            self._awake_for[peer] = None
            self._keep(peer)
        if not self._awake:
            self._spinner.woken()
        if self._rise() or self._end_pause():
            self._tick()  # one turn of the loop earlier than `wake`

    def spin_for(self, channel: Channel) -> None:
        """Poll without yielding to the loop until the channel is ready, the loop has work, or time is up."""
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
        """Cancel a scheduled pause; return whether there was one."""
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
        else:  # MPI has work, but other processes want the core
            pays = not self._idle_polls or (self._idle_polls < YIELDING_POLLS and self._spinner.give_way())
            self._schedule(0.0 if pays else PAUSE)

    def _sleep(self) -> None:
        counters.sleeps += 1
        for peer in self._sent_to:  # a peer's notice that it sleeps may cross our envelopes: ring for each of them
            if peer.sent > peer.rung and not peer.dead:
                peer.ring()
        self._sent_to.clear()
        if self._active_until:
            self._spinner.calm()
            self._spinner.missed()
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
        """Poll without a doorbell; return whether that found something."""
        return not self._awake and not self._closed and self._poll()

    # Progress

    def _poll(self) -> bool:
        """Advance all communication as far as possible; return whether anything moved."""
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
            if not moved:
                self._spinner.arrived()
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
        if peer is not None and to == self.uid:  # otherwise it is from or for an engine that has died
            peer.received += 1
            counters.envelopes_received += 1
            try:
                if self._mail.read(peer, view[:size]):
                    self._busy[peer] = None
            except Exception as exc:
                logger.exception("Invalid data from rank %d; closing its connections", peer.rank)
                self._distrust(peer, exc)
            self.part(peer)
        self._requests[slot].Start()

    def _distrust(self, peer: Peer, exc: Exception) -> None:
        reason = ProtocolError(f"rank {peer.rank} sent invalid data: {exc}")
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
        if kind != wire.RELEASED:  # not urgent: goes along with a later answer or the next poll
            peer.flush()
        self._unflushed[peer] = self._sent_to[peer] = None
        self._has_work(peer)

    def _has_work(self, peer: Peer) -> None:
        self._busy[peer] = None
        self.wake()

    # Shutdown

    def close(self, *, tell: bool) -> None:
        """Release the tag and the receives, once no connection is left.

        If ``tell``, notify the peers so that they forget this engine.
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

"""The bookkeeping of large messages: which are announced, which wait for memory or a tag, which are under way."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4dask import direct, framing, records
from mpi4dask.both_ends import Pull, Push, Span, UnreadableError
from mpi4dask.buffers import Pool
from mpi4dask.channel import Channel
from mpi4dask.configuration import Settings
from mpi4dask.counters import counters
from mpi4dask.peer import Peer
from mpi4dask.transfers import Incoming, Outgoing
from mpi4dask.world import World

logger = logging.getLogger("mpi4dask")

Answer = Callable[[Peer, int, int, int], None]

_abandoned: list[Peer] = []  # whose buffers MPI or the peer may still look at


class LargeMessages:
    """Those of one engine.

    `answer(peer, kind, tag, transfer)` sends the receiver's word to the sender, `has_work(peer)` lets the engine call
    `progress`.
    """

    def __init__(  # noqa: PLR0917
        self,
        world: World,
        settings: Settings,
        pool: Pool,
        numbers: Iterator[int],
        answer: Answer,
        has_work: Callable[[Peer], None],
    ) -> None:
        self._world = world
        self._comm = world.comm
        self._settings = settings
        self._pool = pool
        self._numbers = numbers
        self._answer = answer
        self._has_work = has_work
        self._deferred: list[Incoming] = []

    # Sending

    def announce(self, peer: Peer, channel: Channel, remote: int, layout: framing.Layout, limit: int) -> None:
        """Tell the peer of a large message; its small frames go along where they fit `limit` bytes."""
        number = next(self._numbers)
        buffers = layout.alone
        room = limit - 8 * (len(buffers) + 1)  # beside the addresses
        apart = layout.packed_size > room
        if apart:
            buffers = [b"".join(layout.packed), *buffers]
        addresses = _addresses(buffers) if peer.neighbour is not None and room >= 0 else []
        outgoing = peer.outgoing[number] = Outgoing(buffers, self._settings.chunk_size, peer.rank, channel)
        beside = sum(map(framing.length, layout.alone))
        head = records.TRANSFER.pack(number, outgoing.counts.address, beside, len(addresses))
        head += struct.pack(f"<{len(addresses)}Q", *addresses)
        if apart:
            peer.put(records.LARGE_APART, layout.nframes, remote, layout.packed_size, head)
        else:
            peer.put(records.LARGE, layout.nframes, remote, layout.packed_size, head, *layout.packed)
        channel.outgoing += 1
        counters.large_transfers_sent += 1

    def help(self, peer: Peer, number: int, size: int, asker: int, spans: Sequence[Span]) -> None:
        """The receiver copies a message from this memory, and would have this end copy from its last piece on."""
        outgoing = peer.outgoing[number]
        outgoing.push = Push(spans, size, outgoing.counts, asker)
        self._has_work(peer)

    def gone(self, peer: Peer, number: int) -> None:
        """The receiver has it, or nobody will receive it."""
        outgoing = peer.outgoing.pop(number)
        self._end_help(peer, number, outgoing)
        outgoing.channel.gone()

    def _end_help(self, peer: Peer, number: int, outgoing: Outgoing) -> None:
        """Copy no more, and say so."""
        if outgoing.push is not None:
            self._answer(peer, records.HELPED, 0, number)
            counters.transfers_helped += bool(outgoing.push.copied)
            outgoing.push = None

    # Receiving

    def take(self, incoming: Incoming) -> None:
        """A message was announced: ask for it, or let it wait for memory and a tag."""
        if incoming.channel is not None:
            incoming.channel.announce(incoming.message)
        if not self._start(incoming):
            self._deferred.append(incoming)

    def start_deferred(self) -> None:
        """Memory or a tag may be free: ask for what waited."""
        if self._deferred:
            self._deferred = [incoming for incoming in self._deferred if not self._start(incoming)]

    def _start(self, incoming: Incoming) -> bool:
        """Read it or ask for its bytes, or release it where nobody reads; return False where it has to wait."""
        peer, channel = incoming.peer, incoming.channel
        if channel is None or channel.closed:
            self._answer(peer, records.RELEASED, 0, incoming.number)
            return True
        if not incoming.has_room(self._settings.backlog):
            return False
        if incoming.addresses and peer.neighbour is not None:
            self._has_work(peer)
        else:
            tag = self._world.take_transfer_tag()
            if tag is None:
                return False
            incoming.tag = tag
            incoming.post(self._comm, self._settings.chunk_size, self._pool)
            self._answer(peer, records.READY, tag, incoming.number)
        channel.unread += incoming.message.size
        peer.incoming.append(incoming)
        return True

    # Progress

    def progress(self, peer: Peer) -> bool:
        """Move this peer's transfers; return whether one has ended."""
        sent = self._progress_outgoing(peer)
        received = self._progress_incoming(peer)
        if received:
            self.start_deferred()
        return sent or received

    def _progress_outgoing(self, peer: Peer) -> bool:
        moved = False
        for number, outgoing in list(peer.outgoing.items()):
            if outgoing.push is not None:
                moved |= self._push_on(peer, number, outgoing)
            if outgoing.tag >= 0 and outgoing.progress(self._comm):
                self.gone(peer, number)
                moved = True
        return moved

    def _push_on(self, peer: Peer, number: int, outgoing: Outgoing) -> bool:
        assert outgoing.push is not None
        moved = peer.neighbour is not None and outgoing.push.advance(peer.neighbour)
        if peer.neighbour is None or outgoing.push.done:
            self._end_help(peer, number, outgoing)
        return moved

    def _progress_incoming(self, peer: Peer) -> bool:
        under_way = []
        moved, read, readable = False, False, peer.neighbour is not None
        for incoming in peer.incoming:
            if incoming.tag >= 0:
                moved |= incoming.progress(self._comm, self._settings.chunk_size, self._pool)
            elif not read:  # one is read in each turn: what came first is complete first
                read = True
                moved |= self._read_on(peer, incoming)
            if incoming.complete:
                moved = True
                self._end(incoming)
            else:
                under_way.append(incoming)
        peer.incoming = under_way
        if readable and peer.neighbour is None:
            self._leave_to_mpi(peer)
            moved = True
        return moved

    def _read_on(self, peer: Peer, incoming: Incoming) -> bool:
        assert peer.neighbour is not None
        try:
            return incoming.read_on(peer.neighbour, self._pool, self._ask_for_help)
        except UnreadableError:
            logger.info("The memory of rank %d cannot be read: large frames go through MPI", peer.rank)
            peer.neighbour = None
            return False

    def _ask_for_help(self, incoming: Incoming, pull: Pull, spans: Sequence[Span], size: int) -> bool:
        """Ask the sender to copy too, where it has a core of its own to do so; return whether it was asked."""
        peer = incoming.peer
        room = peer.eager_size - records.ENVELOPE.size - records.RECORD.size - records.HELP_WANTED.size
        if not peer.spins or len(spans) * records.SPAN.size > room or (peer.neighbour and peer.neighbour.is_here):
            return False
        wanted = records.HELP_WANTED.pack(pull.counts.address, size)
        peer.put(records.HELP, len(spans), incoming.number, 0, wanted, *(records.SPAN.pack(*span) for span in spans))
        peer.flush()
        peer.helping[incoming.number] = pull
        return True

    def _leave_to_mpi(self, peer: Peer) -> None:
        """Let what was to be read from the peer's memory begin again, by MPI."""
        for incoming in peer.incoming:
            if incoming.tag < 0 and incoming.channel is not None:
                incoming.rewind()
                incoming.channel.unread -= incoming.message.size
                self._deferred.append(incoming)
        peer.incoming = [incoming for incoming in peer.incoming if incoming.tag >= 0]

    def _end(self, incoming: Incoming) -> None:
        if incoming.tag >= 0:
            self._world.give_transfer_tag(incoming.tag)
        else:
            counters.direct_bytes_received += incoming.message.size
            self._answer(incoming.peer, records.RELEASED, 0, incoming.number)
        counters.messages_received += 1
        counters.large_transfers_received += 1
        counters.bytes_received += incoming.message.size
        counters.mpi_bytes_received += incoming.message.size
        if incoming.channel is not None:
            incoming.channel.wake()

    def forget(self, peer: Peer) -> None:
        """The peer has died. The tags of what was under way stay taken: a piece may still be on its way to them."""
        for outgoing in peer.outgoing.values():
            outgoing.channel.gone()
        self._deferred = [incoming for incoming in self._deferred if incoming.peer is not peer]
        for incoming in peer.incoming:
            for request, _ in incoming.pending:
                request.Cancel()
        self.keep_memory(peer)

    def keep_memory(self, peer: Peer) -> None:
        """Nobody will look after this peer any more, but MPI or the peer itself may still read what is on its way."""
        if peer.outgoing or peer.incoming or peer.in_flight or peer.helping:
            _abandoned.append(peer)


def _addresses(buffers: Sequence[Any]) -> list[int]:
    """Where the parts of a message lie; none where one of them is on a GPU."""
    return [] if any(map(framing.is_cuda, buffers)) else [direct.address(buffer) for buffer in buffers]

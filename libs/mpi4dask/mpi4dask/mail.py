"""The contents of envelopes: messages for the inboxes, and the state of large messages.

A large message is announced first. It then waits for memory and a tag, and is finally transferred.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from distributed.comm import CommClosedError

from mpi4dask import memory, wire
from mpi4dask.buffers import Pool
from mpi4dask.channel import Channel, Message
from mpi4dask.configuration import Settings
from mpi4dask.counters import counters
from mpi4dask.errors import ProtocolError
from mpi4dask.memory import Pull, Push, Span, UnreadableError
from mpi4dask.peer import Peer
from mpi4dask.transfers import Incoming, Outgoing
from mpi4dask.world import World

logger = logging.getLogger("mpi4dask")
Answer = Callable[[Peer, int, int, int], None]
_abandoned: list[Peer] = []  # keeps buffers alive that MPI or the peer may still access


class Mail:
    """The open inboxes of one engine by number, and the handling of received records."""

    def __init__(self, large: LargeMessages) -> None:
        self.channels: dict[int, Channel] = {}
        self._large = large

    def open(self, number: int, channel: Channel) -> None:
        """Deliver messages for this number to this inbox from now on."""
        channel.on_space = self._large.start_deferred
        self.channels[number] = channel

    def close(self, number: int) -> None:
        """Close the inbox; later messages for it are received and dropped."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.drop()
            self._large.start_deferred()

    def read(self, peer: Peer, view: memoryview) -> bool:
        """Process one envelope; return whether the peer requested something that MPI has to send now.

        Raises:
            ProtocolError: The envelope is invalid. Unpacking may raise other errors.
        """
        wanted = False
        at = wire.ENVELOPE.size
        end = len(view)
        while at < end:
            kind, number, first, second = wire.RECORD.unpack_from(view, at)
            at += wire.RECORD.size
            if kind == wire.MESSAGE:
                channel = self.channels.get(first)
                if channel is not None:
                    block = memoryview(bytearray(view[at : at + second]))
                    _take(channel, number, block)
                at += second
            elif kind in (wire.LARGE, wire.LARGE_APART):
                transfer, helper, alone, count = wire.TRANSFER.unpack_from(view, at)
                at += wire.TRANSFER.size
                addresses = struct.unpack_from(f"<{count}Q", view, at)
                at += 8 * count
                block = None
                if kind == wire.LARGE:
                    block = memoryview(bytearray(view[at : at + second]))
                    at += second
                message = Message(second + alone)
                channel = self.channels.get(first)
                incoming = Incoming(peer.rank, transfer, channel, message, number, second, block, helper, addresses)
                self._large.take(peer, incoming)
            elif kind == wire.READY:
                peer.outgoing[first].tag = number
                wanted = True
            elif kind == wire.HELP:
                asker, size = wire.HELP_WANTED.unpack_from(view, at)
                at += wire.HELP_WANTED.size
                end_of_spans = at + number * wire.SPAN.size
                self._large.help(peer, first, size, asker, [*wire.SPAN.iter_unpack(view[at:end_of_spans])])
                at = end_of_spans
            else:
                self._control(peer, kind, first)
        return wanted

    def _control(self, peer: Peer, kind: int, word: int) -> None:
        if kind == wire.RELEASED:
            self._large.gone(peer, word)
        elif kind == wire.HELPED:
            del peer.helping[word]
        elif kind == wire.CLOSED:
            channel = self.channels.get(word)
            if channel is not None:
                channel.end(CommClosedError("the peer closed the connection"))
        elif kind == wire.ASLEEP:
            peer.fell_asleep(word)
        elif kind == wire.GONE:
            peer.has_gone()
        else:
            raise ProtocolError(f"unknown record {kind}")


def _take(channel: Channel, nframes: int, block: memoryview) -> None:
    frames = wire.unpack(block, wire.read_table(block, nframes), ()) if nframes else [block]
    size = len(block)
    counters.messages_received += 1
    counters.bytes_received += size
    counters.mpi_bytes_received += size
    channel.announce(Message(size, frames))


class LargeMessages:
    """The large messages of one engine.

    `answer(peer, kind, tag, transfer)` sends the receiver's answer to the sender; `has_work(peer)` makes the engine
    call `progress`.
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
        self._deferred: list[tuple[Peer, Incoming]] = []

    # Sending

    def announce(self, peer: Peer, channel: Channel, remote: int, layout: wire.Layout, limit: int) -> None:
        """Announce a large message to the peer; its small frames are included if they fit into `limit` bytes.

        Args:
            peer: The receiving engine.
            channel: The channel of the connection at this end.
            remote: The number of the connection at the other end.
            layout: The message.
            limit: Maximum bytes of a message in an envelope.
        """
        number = next(self._numbers)
        buffers = layout.alone
        room = limit - 8 * (len(buffers) + 1)  # next to the addresses
        apart = layout.packed_size > room
        if apart:
            buffers = [b"".join(layout.packed), *buffers]
        addresses = _addresses(buffers) if peer.neighbour is not None and room >= 0 else []
        outgoing = peer.outgoing[number] = Outgoing(buffers, self._settings.chunk_size, peer.rank, channel)
        beside = sum(map(wire.length, layout.alone))
        head = wire.TRANSFER.pack(number, outgoing.counts.address, beside, len(addresses))
        head += struct.pack(f"<{len(addresses)}Q", *addresses)
        if apart:
            peer.put(wire.LARGE_APART, layout.nframes, remote, layout.packed_size, head)
        else:
            peer.put(wire.LARGE, layout.nframes, remote, layout.packed_size, head, *layout.packed)
        channel.outgoing += 1
        counters.large_transfers_sent += 1

    def help(self, peer: Peer, number: int, size: int, asker: int, spans: Sequence[Span]) -> None:
        """Help the receiver, which copies from the front, by copying a message from its last piece on.

        Args:
            peer: The receiver.
            number: The id of the transfer.
            size: Bytes of a piece.
            asker: Address of the receiver's counts.
            spans: The address of each part at both ends, and its bytes.
        """
        outgoing = peer.outgoing[number]
        outgoing.push = Push(spans, size, outgoing.counts, asker)
        self._has_work(peer)

    def gone(self, peer: Peer, number: int) -> None:
        """Finish a message that the receiver has received, or that will not be received."""
        outgoing = peer.outgoing.pop(number)
        self._end_help(peer, number, outgoing)
        outgoing.channel.gone()

    def _end_help(self, peer: Peer, number: int, outgoing: Outgoing) -> None:
        """Stop copying, and tell the receiver."""
        if outgoing.push is not None:
            self._answer(peer, wire.HELPED, 0, number)
            counters.transfers_helped += bool(outgoing.push.copied)
            outgoing.push = None

    # Receiving

    def take(self, peer: Peer, incoming: Incoming) -> None:
        """Request an announced message, or defer it until memory and a tag are available."""
        if incoming.channel is not None:
            incoming.channel.announce(incoming.message)
        if not self._start(peer, incoming):
            self._deferred.append((peer, incoming))

    def start_deferred(self) -> None:
        """Request deferred messages, because memory or a tag may be available now."""
        if self._deferred:
            self._deferred = [waiting for waiting in self._deferred if not self._start(*waiting)]

    def _start(self, peer: Peer, incoming: Incoming) -> bool:
        """Read or request a message, or release it if its channel is closed; return False if it has to wait."""
        channel = incoming.channel
        if channel is None or channel.closed:
            self._answer(peer, wire.RELEASED, 0, incoming.number)
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
            self._answer(peer, wire.READY, tag, incoming.number)
        channel.unread += incoming.message.size
        peer.incoming.append(incoming)
        return True

    # Progress

    def progress(self, peer: Peer) -> bool:
        """Advance the transfers of this peer; return whether one has ended."""
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
            elif not read:  # only one per turn, so that messages complete in order
                read = True
                moved |= self._read_on(peer, incoming)
            if incoming.complete:
                moved = True
                self._end(peer, incoming)
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
            return incoming.read_on(peer.neighbour, self._pool, partial(self._ask_for_help, peer))
        except UnreadableError:
            logger.info("Cannot read the memory of rank %d: large frames use MPI", peer.rank)
            peer.neighbour = None
            return False

    def _ask_for_help(self, peer: Peer, incoming: Incoming, pull: Pull, spans: Sequence[Span], size: int) -> bool:
        """Ask the sender to help copying if it has a core of its own; return whether it was asked."""
        room = peer.eager_size - wire.ENVELOPE.size - wire.RECORD.size - wire.HELP_WANTED.size
        if not peer.spins or len(spans) * wire.SPAN.size > room or (peer.neighbour and peer.neighbour.is_here):
            return False
        wanted = wire.HELP_WANTED.pack(pull.counts.address, size)
        peer.put(wire.HELP, len(spans), incoming.number, 0, wanted, *(wire.SPAN.pack(*span) for span in spans))
        peer.flush()
        peer.helping[incoming.number] = pull
        return True

    def _leave_to_mpi(self, peer: Peer) -> None:
        """Restart reads from the peer's memory as MPI transfers."""
        for incoming in peer.incoming:
            if incoming.tag < 0 and incoming.channel is not None:
                incoming.rewind()
                incoming.channel.unread -= incoming.message.size
                self._deferred.append((peer, incoming))
        peer.incoming = [incoming for incoming in peer.incoming if incoming.tag >= 0]

    def _end(self, peer: Peer, incoming: Incoming) -> None:
        if incoming.tag >= 0:
            self._world.give_transfer_tag(incoming.tag)
        else:
            counters.direct_bytes_received += incoming.message.size
            self._answer(peer, wire.RELEASED, 0, incoming.number)
        counters.messages_received += 1
        counters.large_transfers_received += 1
        counters.bytes_received += incoming.message.size
        counters.mpi_bytes_received += incoming.message.size
        if incoming.channel is not None:
            incoming.channel.wake()

    def forget(self, peer: Peer) -> None:
        """Drop the transfers of a dead peer. Their tags stay in use, because a piece may still be on its way."""
        for outgoing in peer.outgoing.values():
            outgoing.channel.gone()
        self._deferred = [waiting for waiting in self._deferred if waiting[0] is not peer]
        for incoming in peer.incoming:
            for request, _ in incoming.pending:
                request.Cancel()
        self.keep_memory(peer)

    def keep_memory(self, peer: Peer) -> None:
        """Keep the buffers of a peer that is no longer served, because MPI or the peer may still access them."""
        if peer.outgoing or peer.incoming or peer.in_flight or peer.helping:
            _abandoned.append(peer)


def _addresses(buffers: Sequence[Any]) -> list[int]:
    """Return the addresses of the parts of a message, or an empty list if one of them is on a GPU."""
    return [] if any(map(wire.is_cuda, buffers)) else [memory.address(buffer) for buffer in buffers]

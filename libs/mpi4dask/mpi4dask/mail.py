"""What is in an envelope: messages for the inboxes of connections, and words about large messages and sleep."""

from __future__ import annotations

import struct

from distributed.comm import CommClosedError

from mpi4dask import framing, records
from mpi4dask.channel import Channel, Message
from mpi4dask.counters import counters
from mpi4dask.errors import ProtocolError
from mpi4dask.large import LargeMessages
from mpi4dask.peer import Peer
from mpi4dask.transfers import Incoming


class Mail:
    """The open inboxes of one engine, by number, and what the records of an envelope do to them."""

    def __init__(self, large: LargeMessages) -> None:
        self.channels: dict[int, Channel] = {}
        self._large = large

    def open(self, number: int, channel: Channel) -> None:
        """From now on, what comes for this number goes to this inbox."""
        channel.on_space = self._large.start_deferred
        self.channels[number] = channel

    def close(self, number: int) -> None:
        """Nobody reads this inbox any more; what still comes for it is received and dropped."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.drop()
            self._large.start_deferred()

    def read(self, peer: Peer, view: memoryview) -> bool:
        """Read one envelope; return whether the peer asks for something that MPI has to send now.

        Raise ProtocolError, or what unpacking raises, where it cannot be read.
        """
        wanted = False
        at = records.ENVELOPE.size
        end = len(view)
        while at < end:
            kind, number, first, second = records.RECORD.unpack_from(view, at)
            at += records.RECORD.size
            if kind == records.MESSAGE:
                channel = self.channels.get(first)
                if channel is not None:
                    block = memoryview(bytearray(view[at : at + second]))
                    _take(channel, number, block)
                at += second
            elif kind in (records.LARGE, records.LARGE_APART):
                transfer, helper, alone, count = records.TRANSFER.unpack_from(view, at)
                at += records.TRANSFER.size
                addresses = struct.unpack_from(f"<{count}Q", view, at)
                at += 8 * count
                block = None
                if kind == records.LARGE:
                    block = memoryview(bytearray(view[at : at + second]))
                    at += second
                message = Message(second + alone)
                channel = self.channels.get(first)
                incoming = Incoming(peer, transfer, channel, message, number, second, block, helper, addresses)
                self._large.take(incoming)
            elif kind == records.READY:
                peer.outgoing[first].tag = number
                wanted = True
            elif kind == records.HELP:
                asker, size = records.HELP_WANTED.unpack_from(view, at)
                at += records.HELP_WANTED.size
                end_of_spans = at + number * records.SPAN.size
                self._large.help(peer, first, size, asker, [*records.SPAN.iter_unpack(view[at:end_of_spans])])
                at = end_of_spans
            else:
                self._control(peer, kind, first)
        return wanted

    def _control(self, peer: Peer, kind: int, word: int) -> None:
        if kind == records.RELEASED:
            self._large.gone(peer, word)
        elif kind == records.HELPED:
            del peer.helping[word]
        elif kind == records.CLOSED:
            channel = self.channels.get(word)
            if channel is not None:
                channel.end(CommClosedError("the peer closed the connection"))
        elif kind == records.ASLEEP:
            peer.fell_asleep(word)
        elif kind == records.GONE:
            peer.has_gone()
        else:
            raise ProtocolError(f"unknown record {kind}")


def _take(channel: Channel, nframes: int, block: memoryview) -> None:
    frames = framing.unpack(block, framing.read_table(block, nframes), ()) if nframes else [block]
    size = len(block)
    counters.messages_received += 1
    counters.bytes_received += size
    counters.mpi_bytes_received += size
    channel.announce(Message(size, frames))

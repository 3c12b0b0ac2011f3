"""The bookkeeping of large messages: which are announced, which wait for memory or a tag, which are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpi4dask import framing, records
from mpi4dask.buffers import Pool
from mpi4dask.channel import Channel
from mpi4dask.configuration import Settings
from mpi4dask.counters import counters
from mpi4dask.peer import Peer
from mpi4dask.transfers import Incoming, Outgoing
from mpi4dask.world import World

Answer = Callable[[Peer, int, int, int], None]

_abandoned: list[Peer] = []  # the dead whose buffers MPI may still look at


class LargeMessages:
    """Those of one engine. `answer(peer, kind, tag, transfer)` sends the receiver's word to the sender."""

    def __init__(self, world: World, settings: Settings, pool: Pool, numbers: Iterator[int], answer: Answer) -> None:
        self._world = world
        self._comm = world.comm
        self._settings = settings
        self._pool = pool
        self._numbers = numbers
        self._answer = answer
        self._deferred: list[Incoming] = []

    # Sending

    def announce(self, peer: Peer, channel: Channel, remote: int, layout: framing.Layout, limit: int) -> None:
        """Tell the peer of a large message; its small frames go along where they fit `limit` bytes."""
        number = next(self._numbers)
        head = records.TRANSFER.pack(number, sum(map(framing.length, layout.alone)))
        buffers = layout.alone
        if layout.packed_size <= limit:
            peer.put(records.LARGE, layout.nframes, remote, layout.packed_size, head, *layout.packed)
        else:
            buffers = [b"".join(layout.packed), *buffers]
            peer.put(records.LARGE_APART, layout.nframes, remote, layout.packed_size, head)
        channel.outgoing += 1
        peer.outgoing[number] = Outgoing(buffers, self._settings.chunk_size, peer.rank, channel)
        counters.large_transfers_sent += 1

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
        """Ask for its bytes, or decline it where nobody reads; return False where it has to wait."""
        peer, channel = incoming.peer, incoming.channel
        if channel is None or channel.closed:
            self._answer(peer, records.DECLINED, 0, incoming.number)
            return True
        tag = self._world.take_transfer_tag() if incoming.has_room(self._settings.backlog) else None
        if tag is None:
            return False
        incoming.tag = tag
        channel.unread += incoming.message.size
        incoming.post(self._comm, self._settings.chunk_size, self._pool)
        peer.incoming.append(incoming)
        self._answer(peer, records.READY, tag, incoming.number)
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
        done = [n for n, transfer in peer.outgoing.items() if transfer.tag >= 0 and transfer.progress(self._comm)]
        for number in done:
            peer.outgoing.pop(number).channel.gone()
        return bool(done)

    def _progress_incoming(self, peer: Peer) -> bool:
        under_way = []
        for incoming in peer.incoming:
            if incoming.progress(self._comm, self._settings.chunk_size, self._pool):
                self._end(incoming)
            else:
                under_way.append(incoming)
        ended = len(under_way) < len(peer.incoming)
        peer.incoming = under_way
        return ended

    def _end(self, incoming: Incoming) -> None:
        self._world.give_transfer_tag(incoming.tag)
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
        if peer.outgoing or peer.incoming or peer.in_flight:
            _abandoned.append(peer)

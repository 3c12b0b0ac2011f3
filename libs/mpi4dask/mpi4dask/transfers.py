"""Transfers of large frames.

The receiver allocates the final buffers. It then reads the frames from the sender's memory if both are on one node,
with the sender's help (see `memory`); otherwise it posts its receives and only then asks the sender to send.

An announcement is always answered (accepted or declined), and accepted data is always sent and received completely,
even if its connection has closed in the meantime. So no receive is ever cancelled, and no tag carries stray messages
when it is reused; only the death of the peer ends a transfer early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4dask import gpu, memory, wire
from mpi4dask.buffers import Pool, host_block
from mpi4dask.channel import Channel, Message
from mpi4dask.memory import WORTH_IT, Counts, Pull, Push, Span, piece_size

WINDOW = 2  # pieces of one transfer in flight: the next is ready when one ends


AskForHelp = Callable[["Incoming", Pull, Sequence[Span], int], bool]


def pieces(buffers: Sequence[Any], chunk: int) -> Iterator[Any]:
    """Cut buffers into pieces of at most `chunk` bytes."""
    for buffer in buffers:
        size = wire.length(buffer)
        if size <= chunk:
            yield buffer
        else:
            for start in range(0, size, chunk):
                yield gpu.piece(buffer, start, min(start + chunk, size))


class Outgoing:
    """A message whose frames wait for the receiver's request and are then sent piece by piece."""

    __slots__ = ("channel", "counts", "pending", "push", "rank", "sent_all", "tag", "waiting")

    def __init__(self, buffers: Sequence[Any], chunk: int, rank: int, channel: Channel) -> None:
        self.waiting = pieces(buffers, chunk)
        self.pending: deque[tuple[Any, Any]] = deque()
        self.rank = rank
        self.tag = -1
        self.sent_all = False
        self.channel = channel
        self.counts = Counts()  # progress of a push; the receiver knows the address
        self.push: Push | None = None  # the help that the receiver asked for

    def progress(self, comm: Any) -> bool:
        """Send as many pieces as the window allows; return whether all have been sent."""
        pending = self.pending
        while pending and pending[0][0].Test():
            pending.popleft()
        while not self.sent_all and len(pending) < WINDOW:
            piece = next(self.waiting, None)
            if piece is None:
                self.sent_all = True
            else:
                part = gpu.outgoing(piece)
                pending.append((comm.Isend(gpu.for_mpi(part), self.rank, self.tag), part))
        return self.sent_all and not pending


class Incoming:
    """A message that is being received into its final buffers."""

    __slots__ = (
        "addresses",
        "alone",
        "apart",
        "block",
        "channel",
        "entries",
        "helper",
        "message",
        "nframes",
        "number",
        "packed_size",
        "pending",
        "places",
        "pull",
        "rank",
        "tag",
    )

    def __init__(  # noqa: PLR0917
        self,
        rank: int,
        number: int,
        channel: Channel | None,
        message: Message,
        nframes: int,
        packed_size: int,
        block: memoryview | None,
        helper: int,
        addresses: Sequence[int],
    ) -> None:
        self.rank = rank
        self.number = number  # the sender's id of the transfer
        self.channel = channel  # None: it was closed before this arrived
        self.message = message
        self.nframes = nframes
        self.packed_size = packed_size
        self.apart = block is None  # the packed block comes as the first part
        self.block = block
        self.helper = helper  # address of the sender's counts
        self.addresses = addresses  # addresses of the parts at the sender; none if only MPI can carry them
        self.tag = -1  # the tag of an MPI transfer
        self.entries: list[wire.Entry] | None = None
        self.alone: list[Any] = []
        self.pending: deque[tuple[Any, Any]] = deque()
        self.places = iter(addresses)
        self.pull: Pull | None = None  # the current read from the sender's memory

    def has_room(self, backlog: int) -> bool:
        """Return whether the reader is close enough to this message to allocate memory for it."""
        channel = self.channel
        if channel is None:
            return False
        return channel.unread <= backlog or (bool(channel.inbox) and channel.inbox[0] is self.message)

    def post(self, comm: Any, chunk: int, pool: Pool) -> None:
        """Post the receives of the next parts."""
        for piece in pieces(self._next_parts(pool), chunk):
            part = gpu.incoming(piece)
            self.pending.append((comm.Irecv(gpu.for_mpi(part), self.rank, self.tag), part))

    def progress(self, comm: Any, chunk: int, pool: Pool) -> bool:
        """Check for received parts; return whether the message is complete, with its frames in place."""
        pending = self.pending
        while True:
            while pending and pending[0][0].Test():
                gpu.received(pending.popleft()[1])
            if pending:
                return False
            if self.entries is not None:
                break
            self.post(comm, chunk, pool)
        self._complete()
        return True

    def read_on(self, neighbour: memory.Neighbour, pool: Pool, ask: AskForHelp) -> bool:
        """Read as much as one turn of the loop allows; return whether anything was read. See also `complete`.

        Raises:
            UnreadableError: The sender's memory cannot be read.
        """
        if self.pull is None:
            self.pull = self._next_pull(pool, ask)
        moved = self.pull.advance(neighbour)
        if self.pull.complete and self.entries is None:
            self.pull = None
            moved = True
        elif self.pull.complete:
            self._complete()
        return moved

    def _next_pull(self, pool: Pool, ask: AskForHelp) -> Pull:
        parts = self._next_parts(pool)
        spans = [(next(self.places), memory.address(part), len(part)) for part in parts]
        total = sum(size for _, _, size in spans)
        size = piece_size(total)
        pull = Pull(spans, size, parts)
        if total >= WORTH_IT and self.entries is not None and ask(self, pull, spans, size):
            pull.expect_help(self.helper)
        return pull

    @property
    def complete(self) -> bool:
        """True if the last byte has arrived and the frames are in place."""
        return self.message.frames is not None

    def rewind(self) -> None:
        """Start again over MPI."""
        self.addresses = ()
        self.pull = None
        self.entries = None
        if self.apart:
            self.block = None

    def _next_parts(self, pool: Pool) -> Sequence[Any]:
        """Allocate memory for the packed block or, if that has arrived, for the frames that travel alone."""
        if self.block is None:
            self.block = host_block(self.packed_size, pool)
            return [self.block]
        self.entries = wire.read_table(self.block, self.nframes)
        self.alone = [
            gpu.block(entry.size) if entry.is_cuda else host_block(entry.size, pool)
            for entry in self.entries
            if entry.is_alone
        ]
        return self.alone

    def _complete(self) -> None:
        assert self.block is not None
        assert self.entries is not None
        self.message.frames = wire.unpack(self.block, self.entries, self.alone)

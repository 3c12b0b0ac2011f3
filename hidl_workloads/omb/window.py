"""A window of messages in one direction: many are under way at once, then one short answer comes back."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import Point, Result
from hidl_workloads.omb.buffers import Message, PickleBuffer
from hidl_workloads.omb.options import Options
from hidl_workloads.omb.timing import Exchange, Timed

if TYPE_CHECKING:
    from mpi4py import MPI

DATA_TAG, ANSWER_TAG = 100, 101


class Side:
    """The buffers of one rank: one for all messages of a window, or one for each (``-b``)."""

    def __init__(self, point: Point, window: int) -> None:
        number = window if point.options.buffer_num == "multiple" else 1
        rank = point.communicator.rank
        self.point = point
        self.buffers = [buffers.for_rank(point.options, rank, point.size) for _ in range(number)]
        self.pickled = isinstance(self.buffers[0], PickleBuffer)
        self._each = window // number

    def messages(self) -> list[Message]:
        """Return the data to send, one item for each message of the window."""
        point = self.point
        return [buffer.message(point.count, point.datatype) for buffer in self.buffers for _ in range(self._each)]

    def rooms(self) -> list[Message]:
        """Return the buffers that receive; for pickled messages, the number of bytes that each may take."""
        if self.pickled:
            return [PickleBuffer.pickled_size(self.point.size)] * (len(self.buffers) * self._each)
        return self.messages()

    def received(self, arrived: Any) -> None:
        """Keep the objects that arrived pickled; what MPI wrote into buffers lies there already."""
        if self.pickled and arrived:
            for buffer, thing in zip(reversed(self.buffers), reversed(arrived), strict=False):
                buffer.received(thing)

    def fill(self, iteration: int, source: int) -> None:
        """Write what rank ``source`` sends in this iteration; each buffer has a pattern of its own."""
        for number, buffer in enumerate(self.buffers):
            buffer.write(buffers.pattern(self.point.count, self.point.datatype, iteration + number, source))

    def check(self, iteration: int, source: int) -> int:
        """Count the elements that are not those that ``source`` sent in this iteration."""
        return sum(
            buffers.differences(
                buffer, buffers.pattern(self.point.count, self.point.datatype, iteration + number, source)
            )
            for number, buffer in enumerate(self.buffers)
        )


def calls(communicator: MPI.Comm, pickled: bool) -> tuple[Any, Any, Any]:
    """``isend``, ``irecv`` and ``waitall`` for what the buffers hold."""
    from mpi4py import MPI

    if pickled:
        return communicator.isend, communicator.irecv, MPI.Request.waitall
    return communicator.Isend, communicator.Irecv, MPI.Request.Waitall


def answer(options: Options, rank: int) -> Message:
    """The message of one byte that says that a window has arrived: from the buffers' kind, as in OMB."""
    from mpi4py import MPI

    return (buffers.for_rank(options, rank, 1).memory, 1, MPI.CHAR)


def sender(point: Point, window: int, peers: list[int], *, mark: int | None = None) -> Exchange:
    """Send a window to every peer, and wait for the answer of each. With -c the data tells the rank, or ``mark``."""
    communicator, rank = point.communicator, point.communicator.rank
    side = Side(point, window)
    sends = [(message, peer) for message in side.messages() for peer in peers]
    isend, _, waitall = calls(communicator, side.pickled)
    receive, short = communicator.Recv, answer(point.options, rank)

    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            waitall([isend(message, peer, DATA_TAG) for message, peer in sends])
            for peer in peers:
                receive(short, peer, ANSWER_TAG)

    return Exchange(exchange, lambda iteration: side.fill(iteration, rank if mark is None else mark))


def receiver(point: Point, window: int, peers: list[int], *, mark: int | None = None) -> Exchange:
    """Receive a window from every peer, and answer each. With -c the data must tell its sender, or ``mark``."""
    communicator, rank = point.communicator, point.communicator.rank
    side = Side(point, window)
    receives = [(room, peer) for room in side.rooms() for peer in peers]
    _, irecv, waitall = calls(communicator, side.pickled)
    send, short = communicator.Send, answer(point.options, rank)

    def exchange(times: int) -> None:
        arrived = None
        for _ in repeat(None, times):
            arrived = waitall([irecv(room, peer, DATA_TAG) for room, peer in receives])
            for peer in peers:
                send(short, peer, ANSWER_TAG)
        side.received(arrived)

    return Exchange(
        exchange,
        lambda iteration: side.fill(iteration + 1, rank),
        lambda iteration: side.check(iteration, peers[0] if mark is None else mark),
    )


def in_megabytes(point: Point, timed: Timed, bytes_each: float) -> Result:
    """The figures of a table of bandwidths (MB are 10^6 bytes), where an iteration moves so many bytes."""
    megabytes = bytes_each / 1e6
    samples = [megabytes / seconds for seconds in timed.each]
    return Result((megabytes * point.iterations / timed.seconds,), timed.errors, samples)

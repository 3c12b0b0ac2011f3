"""Latency: two ranks send a message to and fro; half a round trip is the latency."""

from __future__ import annotations

from itertools import repeat

from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import LATENCY, Benchmark, Point, Result
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.timing import Exchange, Timed, time_exchange

_TAG = 1


def exactly_two(options: Options, ranks: int) -> None:
    """Raise ``UsageError`` in any other world than one of two ranks."""
    if ranks != 2:
        raise UsageError(f"this test requires exactly two processes, not {ranks}")


def measure(point: Point) -> Result:
    """Half a round trip in microseconds."""
    return in_microseconds(point, time_exchange(point, ping_pong(point, 1 - point.communicator.rank)))


def in_microseconds(point: Point, timed: Timed) -> Result:
    """Half of what each round trip took, as the figures of a table of latencies."""
    samples = [seconds * 1e6 / 2 for seconds in timed.each]
    return Result((timed.seconds * 1e6 / 2 / point.iterations,), timed.errors, samples)


def ping_pong(point: Point, peer: int) -> Exchange:
    """Return the exchange of a rank with ``peer``; the lower of the two begins."""
    rank = point.communicator.rank
    sent, received = (buffers.for_rank(point.options, rank, point.size) for _ in range(2))
    return ping_pong_in(sent, received, point, peer)


def ping_pong_in(sent: buffers.Buffer, received: buffers.Buffer, point: Point, peer: int) -> Exchange:
    """The same, in buffers that are there already."""
    communicator, rank = point.communicator, point.communicator.rank
    message, room = sent.message(point.count, point.datatype), received.room(point.count, point.datatype)
    pickled = isinstance(received, buffers.PickleBuffer)
    send = communicator.send if pickled else communicator.Send
    receive = communicator.recv if pickled else communicator.Recv
    first = rank < peer

    def exchange(times: int) -> None:
        arrived = None
        if first:
            for _ in repeat(None, times):
                send(message, peer, _TAG)
                arrived = receive(room, peer, _TAG)
        else:
            for _ in repeat(None, times):
                arrived = receive(room, peer, _TAG)
                send(message, peer, _TAG)
        if times:
            received.received(arrived)

    def fill(iteration: int) -> None:
        sent.write(buffers.pattern(point.count, point.datatype, iteration, rank))
        received.write(buffers.pattern(point.count, point.datatype, iteration + 1, rank))

    def check(iteration: int) -> int:
        return buffers.differences(received, buffers.pattern(point.count, point.datatype, iteration, peer))

    return Exchange(exchange, fill, check)


BENCHMARKS = (
    Benchmark("latency", "MPI%s Latency Test", measure, "latency", "mixbcuTzd", LATENCY[:1], check=exactly_two),
)

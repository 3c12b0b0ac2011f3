"""Bandwidth between two ranks, in one direction and in both."""

from __future__ import annotations

from itertools import repeat

from hidl_workloads.omb.benchmark import BANDWIDTH, Benchmark, Point, Result
from hidl_workloads.omb.latency import exactly_two
from hidl_workloads.omb.timing import Exchange, time_exchange
from hidl_workloads.omb.window import Side, calls, in_megabytes, receiver, sender

_TAGS = (100, 10)  # for messages from rank 0 and from rank 1


def measure_one_way(point: Point) -> Result:
    """Rank 0 sends windows, rank 1 answers each: MB/s."""
    rank, window = point.communicator.rank, point.options.window_size
    exchange = (sender, receiver)[rank](point, window, [1 - rank])
    return in_megabytes(point, time_exchange(point, exchange), point.size * window)


def measure_both_ways(point: Point) -> Result:
    """Both ranks send a window and receive one at once: MB/s of both directions together."""
    timed = time_exchange(point, _both_ways(point))
    return in_megabytes(point, timed, 2 * point.size * point.options.window_size)


def _both_ways(point: Point) -> Exchange:
    communicator, rank, window = point.communicator, point.communicator.rank, point.options.window_size
    peer = 1 - rank
    sent, received = Side(point, window), Side(point, window)
    messages, rooms = sent.messages(), received.rooms()
    isend, irecv, waitall = calls(communicator, sent.pickled)
    sending, receiving = _TAGS[rank], _TAGS[peer]

    def exchange(times: int) -> None:
        arrived = None
        for _ in repeat(None, times):
            incoming = [irecv(room, peer, receiving) for room in rooms]
            outgoing = [isend(message, peer, sending) for message in messages]
            if rank == 0:
                waitall(outgoing)
                arrived = waitall(incoming)
            else:
                arrived = waitall(incoming)
                waitall(outgoing)
        received.received(arrived)

    def fill(iteration: int) -> None:
        sent.fill(iteration, rank)
        received.fill(iteration + 1, rank)

    return Exchange(exchange, fill, lambda iteration: received.check(iteration, peer))


_OPTIONS = "mixWbcuTzd"
BENCHMARKS = (
    Benchmark("bw", "MPI%s Bandwidth Test", measure_one_way, "bandwidth", _OPTIONS, BANDWIDTH, check=exactly_two),
    Benchmark(
        "bibw",
        "MPI%s Bi-Directional Bandwidth Test",
        measure_both_ways,
        "bandwidth",
        _OPTIONS,
        BANDWIDTH,
        check=exactly_two,
    ),
)

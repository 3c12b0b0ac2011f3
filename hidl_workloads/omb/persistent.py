"""Latency and bandwidth with persistent requests: made once for each size, started again and again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from hidl_workloads.omb.benchmark import BANDWIDTH, LATENCY, Benchmark, Point, Result
from hidl_workloads.omb.latency import exactly_two, in_microseconds
from hidl_workloads.omb.timing import Exchange, time_exchange
from hidl_workloads.omb.window import ANSWER_TAG, DATA_TAG, Side, answer, in_megabytes

if TYPE_CHECKING:
    from mpi4py import MPI

_LATENCY_TAG = 1
_BOTH_TAGS = (100, 101)  # for messages from rank 0 and from rank 1


def measure_latency(point: Point) -> Result:
    """Half a round trip in microseconds."""
    sent, received = Side(point, 1), Side(point, 1)
    sends, receives = _requests(point, sent, received, _LATENCY_TAG, _LATENCY_TAG)
    try:
        exchange = _ping_pong(point, sends[0], receives[0])
        timed = time_exchange(point, _checked(point, exchange, sent, received))
    finally:
        _free(sends + receives)
    return in_microseconds(point, timed)


def measure_one_way(point: Point) -> Result:
    """Rank 0 sends windows, rank 1 answers each: MB/s."""
    window, rank = point.options.window_size, point.communicator.rank
    sent, received = Side(point, window if rank == 0 else 1), Side(point, window if rank == 1 else 1)
    sends, receives = _requests(point, sent, received, DATA_TAG, DATA_TAG)
    try:
        exchange = _window(point, sends if rank == 0 else receives)
        timed = time_exchange(point, _checked(point, exchange, sent, received, only_rank_1=True))
    finally:
        _free(sends + receives)
    return in_megabytes(point, timed, point.size * window)


def measure_both_ways(point: Point) -> Result:
    """Both ranks send a window and receive one at once: MB/s of both directions together."""
    window, rank = point.options.window_size, point.communicator.rank
    sent, received = Side(point, window), Side(point, window)
    sends, receives = _requests(point, sent, received, _BOTH_TAGS[rank], _BOTH_TAGS[1 - rank])
    try:
        exchange = _both(rank, sends, receives)
        timed = time_exchange(point, _checked(point, exchange, sent, received))
    finally:
        _free(sends + receives)
    return in_megabytes(point, timed, 2 * point.size * window)


def _requests(point: Point, sent: Side, received: Side, sending: int, receiving: int) -> tuple[list[Any], list[Any]]:
    communicator = point.communicator
    peer = 1 - communicator.rank
    sends = [communicator.Send_init(message, peer, sending) for message in sent.messages()]
    receives = [communicator.Recv_init(room, peer, receiving) for room in received.messages()]
    return sends, receives


def _free(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        request.Free()


def _ping_pong(point: Point, sending: MPI.Prequest, receiving: MPI.Prequest) -> Callable[[int], None]:
    first, second = (sending, receiving) if point.communicator.rank == 0 else (receiving, sending)
    start_first, wait_first, start_second, wait_second = first.Start, first.Wait, second.Start, second.Wait

    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            start_first()
            wait_first()
            start_second()
            wait_second()

    return exchange


def _window(point: Point, requests: list[MPI.Prequest]) -> Callable[[int], None]:
    from mpi4py import MPI

    communicator = point.communicator
    peer = 1 - communicator.rank
    start_all, wait_all = MPI.Prequest.Startall, MPI.Request.Waitall
    answered = communicator.Recv if communicator.rank == 0 else communicator.Send
    short = answer(point.options, communicator.rank)

    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            start_all(requests)
            wait_all(requests)
            answered(short, peer, ANSWER_TAG)

    return exchange


def _both(rank: int, sends: list[MPI.Prequest], receives: list[MPI.Prequest]) -> Callable[[int], None]:
    from mpi4py import MPI

    start_all, wait_all = MPI.Prequest.Startall, MPI.Request.Waitall
    first, second = (sends, receives) if rank == 0 else (receives, sends)

    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            start_all(receives)
            start_all(sends)
            wait_all(first)
            wait_all(second)

    return exchange


def _checked(
    point: Point, exchange: Callable[[int], None], sent: Side, received: Side, *, only_rank_1: bool = False
) -> Exchange:
    rank = point.communicator.rank

    def fill(iteration: int) -> None:
        sent.fill(iteration, rank)
        received.fill(iteration + 1, rank)

    def check(iteration: int) -> int:
        return 0 if only_rank_1 and rank == 0 else received.check(iteration, 1 - rank)

    return Exchange(exchange, fill, check)


_BUFFERS = frozenset({"bytearray", "numpy", "cupy", "torch", "numba"})
_WITH_WINDOW = "mixWbcuTzd"
BENCHMARKS = (
    Benchmark(
        "latency_persistent",
        "MPI%s Latency Persistent Test",
        measure_latency,
        "latency",
        "mixbcuTzd",
        LATENCY[:1],
        check=exactly_two,
        buffers=_BUFFERS,
    ),
    Benchmark(
        "bw_persistent",
        "MPI%s Bandwidth Persistent Test",
        measure_one_way,
        "bandwidth",
        _WITH_WINDOW,
        BANDWIDTH,
        check=exactly_two,
        buffers=_BUFFERS,
    ),
    Benchmark(
        "bibw_persistent",
        "MPI%s Bi-Directional Bandwidth Persistent Test",
        measure_both_ways,
        "bandwidth",
        _WITH_WINDOW,
        BANDWIDTH,
        check=exactly_two,
        buffers=_BUFFERS,
    ),
)

"""Many pairs at once: latency of each, and bandwidth and message rate of all together.

The first half of the ranks are one side, the second half the other: rank ``r`` and rank ``r + pairs`` are a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hidl_workloads.omb.benchmark import LATENCY, Benchmark, Column, Point, Result, title
from hidl_workloads.omb.latency import in_microseconds, ping_pong
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.timing import Exchange, Timed, time_exchange
from hidl_workloads.omb.window import receiver, sender

WINDOW_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

_RATE = (
    Column("MB/s", "bandwidth", "MB/s", at="large"),
    Column("Messages/s", "message_rate", "messages/s", when="print_rate"),
)


def whole_pairs(options: Options, ranks: int) -> None:
    """Raise ``UsageError`` where there are fewer ranks than the pairs need; ranks of no pair look on."""
    pairs = pairs_of(options, ranks)
    if ranks < 2 or 2 * pairs > ranks:
        raise UsageError(f"{max(pairs, 1)} pair(s) require at least {2 * max(pairs, 1)} ranks, not {ranks}")


def pairs_of(options: Options, ranks: int) -> int:
    """Return the number of pairs: ``-p``, or half the ranks. (OMB 7.4 reads ``-p`` and uses half the ranks.)"""
    return ranks // 2 if options.num_pairs is None else options.num_pairs


def measure_latency(point: Point) -> Result:
    """The mean of all pairs' latencies, in microseconds; all begin each round trip together."""
    pairs = pairs_of(point.options, point.communicator.size)
    rank = point.communicator.rank
    peer = rank + pairs if rank < pairs else rank - pairs
    exchange = ping_pong(point, peer) if peer < pairs * 2 and rank < pairs * 2 else _bystander()
    timed = time_exchange(point, exchange, before=point.communicator.Barrier)
    return in_microseconds(point, _mean_of_senders(point, timed, pairs))


def measure_rate(point: Point) -> Result:
    """MB/s and messages/s of all pairs together."""
    return _rate(point, point.options.window_size)


def _rate(point: Point, window: int) -> Result:
    pairs, rank = pairs_of(point.options, point.communicator.size), point.communicator.rank
    if rank < pairs:
        exchange = sender(point, window, [rank + pairs])
    elif rank < 2 * pairs:
        exchange = receiver(point, window, [rank - pairs])
    else:
        exchange = _bystander()
    timed = _mean_of_senders(point, time_exchange(point, exchange, before=point.communicator.Barrier), pairs)
    megabytes = point.size * window * pairs / 1e6
    bandwidth = megabytes * point.iterations / timed.seconds
    samples = [megabytes / seconds for seconds in timed.each]
    return Result((bandwidth, bandwidth * 1e6 / point.size), timed.errors, samples)


def _measure_varied(point: Point) -> Result:
    results = [_rate(point, window) for window in WINDOW_SIZES]
    return Result([result.values[0] for result in results])


def _varied(benchmark: Benchmark, options: Options) -> Benchmark:
    """With -V: a column for each window size, and the message rates in a table of their own below."""
    if not options.vary_window:
        return benchmark
    if options.validation or options.tail_lat:
        raise UsageError("-V cannot be combined with -c or -z")
    columns = tuple(Column(str(w), f"bandwidth_window_{w}", "MB/s", at="large", width=12) for w in WINDOW_SIZES)
    return replace(
        benchmark,
        measure=_measure_varied,
        columns=columns,
        size_title="#",
        size_width=7,
        closing=_rates if options.print_rate else None,
    )


def _rates(rows: Sequence[tuple[int, Sequence[float]]]) -> str:
    lines = ["", "# Message Rate Profile", f"{'#':<7}" + "".join(f"{window:>12}" for window in WINDOW_SIZES)]
    lines += [f"{size:<7}" + "".join(f"{value * 1e6 / size:12.2f}" for value in values) for size, values in rows]
    return "\n".join(lines)


def _mean_of_senders(point: Point, timed: Timed, pairs: int) -> Timed:
    """Return the mean of the senders' times, on every rank. Percentiles are those of rank 0, as in OMB."""
    own = timed.seconds if point.communicator.rank < pairs else 0.0
    return Timed(point.communicator.allreduce(own) / pairs, timed.each, timed.errors)


def _bystander() -> Exchange:
    """Return the exchange of a rank without a partner, which only enters the barriers."""
    return Exchange(lambda times: None)


def _opening(benchmark: Benchmark, options: Options, ranks: int) -> str:
    window = "varied" if options.vary_window else str(options.window_size)
    head = f"{title(benchmark, options)}# [ pairs: {pairs_of(options, ranks)} ] [ window size: {window} ]\n"
    return f"{head}\n# Uni-directional Bandwidth (MB/sec)\n" if options.vary_window else head


_OPTIONS = "mixbcuTzd"
BENCHMARKS = (
    Benchmark(
        "multi_lat", "MPI Multi Latency Test", measure_latency, "latency", "mixcuTzd", LATENCY[:1], check=whole_pairs
    ),
    Benchmark(
        "mbw_mr",
        "MPI Multiple Bandwidth / Message Rate Test",
        measure_rate,
        "bandwidth",
        "mixbcuTzdWVRp",
        _RATE,
        check=whole_pairs,
        opening=_opening,
        variant=_varied,
    ),
)

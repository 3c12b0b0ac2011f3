"""Put and get: latency, bandwidth, and bandwidth in both directions at once."""

from __future__ import annotations

from functools import partial
from typing import Any

from hidl_workloads.omb import buffers, rma
from hidl_workloads.omb.benchmark import BANDWIDTH, Benchmark, Column, Point, Result
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.rma import Step, Target
from hidl_workloads.omb.timing import Exchange, time_exchange
from hidl_workloads.omb.window import in_megabytes

LATENCY = (Column("Latency (us)", "latency"),)


def measure_put_latency(point: Point) -> Result:
    """Microseconds of one put."""
    return _latency(point, "Put")


def measure_get_latency(point: Point) -> Result:
    """Microseconds of one get."""
    return _latency(point, "Get")


def measure_put_bandwidth(point: Point) -> Result:
    """MB/s of windows of puts."""
    return _bandwidth(point, "Put")


def measure_get_bandwidth(point: Point) -> Result:
    """MB/s of windows of gets."""
    return _bandwidth(point, "Get")


def measure_put_both_ways(point: Point) -> Result:
    """MB/s of windows of puts of each rank into the other's memory, both directions together."""
    window = point.options.window_size
    with rma.target(point, point.size * window) as made:
        data = _Data(point, made, window, "Put", both=True)
        timed = time_exchange(point, data.exchange(rma.both_at_once(made, point, data.operations)), data.after)
    return in_megabytes(point, timed, 2 * point.size * window)


def _latency(point: Point, operation: str) -> Result:
    with rma.target(point, point.size) as made:
        data = _Data(point, made, 1, operation, both=point.options.sync_option in rma.ACTIVE)
        timed = time_exchange(point, data.exchange(rma.to_and_fro(made, point, data.operations)), data.after)
    share = rma.round_trip_share(point.options) * 1e6
    samples = [seconds * share for seconds in timed.each]
    return Result((timed.seconds * share / point.iterations,), timed.errors, samples)


def _bandwidth(point: Point, operation: str) -> Result:
    window = point.options.window_size
    with rma.target(point, point.size * window) as made:
        data = _Data(point, made, window, operation, both=False)
        timed = time_exchange(point, data.exchange(rma.one_way(made, point, data.operations)), data.after)
    return in_megabytes(point, timed, point.size * window)


class _Data:
    """The origin's buffer for a window of messages, the operations on the target, and what -c writes and expects."""

    def __init__(self, point: Point, made: Target, window: int, operation: str, *, both: bool) -> None:
        self.point, self.made, self.puts = point, made, operation == "Put"
        self.origin = buffers.for_rank(point.options, made.rank, point.size * window)
        self.elements = point.count * window
        self.operates, self.exposed = both or made.rank == 0, both or made.rank == 1
        self.after = rma.settled(made, point)
        call: Any = getattr(made.window, operation)
        self.operations: list[Step] = [
            partial(
                call,
                self.origin.message(point.count, point.datatype, number * point.size),
                made.peer,
                made.place(point.count, point, number),
            )
            for number in range(window)
        ]

    def exchange(self, steps: list[Step]) -> Exchange:
        """The steps, with what -c does before and after."""
        return Exchange(rma.looped(steps), self._fill, self._check)

    def _fill(self, iteration: int) -> None:
        source, arrival = (self.origin, self.made.memory) if self.puts else (self.made.memory, self.origin)
        source.write(self._pattern(iteration, self.made.rank))
        arrival.write(self._pattern(iteration + 1, self.made.rank))

    def _check(self, iteration: int) -> int:
        arrives = self.exposed if self.puts else self.operates
        arrival = self.made.memory if self.puts else self.origin
        return buffers.differences(arrival, self._pattern(iteration, self.made.peer)) if arrives else 0

    def _pattern(self, iteration: int, source: int) -> Any:
        return buffers.pattern(self.elements, self.point.datatype, iteration, source)


def _only_active(options: Options, ranks: int) -> None:
    rma.fits(options, ranks)
    if options.sync_option not in rma.ACTIVE:
        raise UsageError(f"put_bibw supports only pscw and fence (-s), not {options.sync_option}")


_LATENCY_OPTIONS, _BANDWIDTH_OPTIONS = "mixwscuzd", "mixwscuzdW"


def _one_sided(name: str, title: str, measure: Any, *, latency: bool = True) -> Benchmark:
    return Benchmark(
        name,
        title,
        measure,
        "latency" if latency else "bandwidth",
        _LATENCY_OPTIONS if latency else _BANDWIDTH_OPTIONS,
        LATENCY if latency else BANDWIDTH,
        defaults=Options(sync_option="pscw") if name == "put_bibw" else Options(),
        check=_only_active if name == "put_bibw" else rma.fits,
        opening=rma.opening,
        reprint=True,
        buffers=rma.BUFFERS,
    )


BENCHMARKS = (
    _one_sided("put_latency", "MPI_Put%s Latency Test", measure_put_latency),
    _one_sided("get_latency", "MPI_Get%s latency Test", measure_get_latency),
    _one_sided("put_bw", "MPI_Put%s Bandwidth Test", measure_put_bandwidth, latency=False),
    _one_sided("get_bw", "MPI_Get%s Bandwidth Test", measure_get_bandwidth, latency=False),
    _one_sided("put_bibw", "MPI_Put%s Bi-directional Bandwidth Test", measure_put_both_ways, latency=False),
)

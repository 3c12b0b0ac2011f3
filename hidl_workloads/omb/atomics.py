"""Accumulate, get-accumulate, fetch-and-op, compare-and-swap: latency of one operation on the other's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hidl_workloads.omb import buffers, rma
from hidl_workloads.omb.benchmark import Benchmark, Point, Result
from hidl_workloads.omb.one_sided import LATENCY
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.rma import Step, Target
from hidl_workloads.omb.timing import Exchange, time_exchange

_SMALL = 8  # sums of eleven numbers below this fit in a char, so no datatype overflows or rounds


class _Sums:
    """Operations that add the origin's elements to the target's; some fetch what was there before."""

    fetches = True

    def __init__(self, point: Point, made: Target) -> None:
        self.point, self.made = point, made
        self.origin = buffers.for_rank(point.options, made.rank, point.size)
        self.result = buffers.for_rank(point.options, made.rank, point.size)
        active = point.options.sync_option in rma.ACTIVE
        self.operates, self.exposed = active or made.rank == 0, active or made.rank == 1
        self.times = point.options.validation_warmup + 1

    def operation(self) -> Step:
        """The call that is measured."""
        raise NotImplementedError

    def fill(self, iteration: int) -> None:
        """Write what is added and what it is added to."""
        self.origin.write(self.added(iteration, self.made.rank))
        self.result.write(self.there(iteration + 1, self.made.rank))
        self.made.memory.write(self.there(iteration, self.made.rank))

    def check(self, iteration: int) -> int:
        """Wrong elements in this rank's memory, and among those that were fetched."""
        made, errors = self.made, 0
        if self.exposed:
            expected = self.after(iteration, source=made.peer, target=made.rank, times=self.times)
            errors += buffers.differences(made.memory, expected)
        if self.fetches and self.operates:
            expected = self.after(iteration, source=made.rank, target=made.peer, times=self.times - 1)
            errors += buffers.differences(self.result, expected)
        return errors

    def added(self, iteration: int, source: int) -> Any:
        """Return the number that rank ``source`` adds."""
        return buffers.pattern(self.point.count, self.point.datatype, iteration, source) % _SMALL

    def there(self, iteration: int, target: int) -> Any:
        """Return the initial value in the memory of ``target``."""
        return buffers.pattern(self.point.count, self.point.datatype, iteration + 2, target) % _SMALL

    def after(self, iteration: int, *, source: int, target: int, times: int) -> Any:
        """Return the value after this many operations of ``source``."""
        added = self.added(iteration, source)
        return (self.there(iteration, target) + added * times).astype(added.dtype)


class _Accumulate(_Sums):
    fetches = False

    def operation(self) -> Step:
        from mpi4py import MPI

        point, made = self.point, self.made
        message = self.origin.message(point.count, point.datatype)
        return partial(made.window.Accumulate, message, made.peer, made.place(point.count, point), MPI.SUM)


class _GetAccumulate(_Sums):
    def operation(self) -> Step:
        from mpi4py import MPI

        point, made = self.point, self.made
        message, result = (b.message(point.count, point.datatype) for b in (self.origin, self.result))
        place = made.place(point.count, point)
        return partial(made.window.Get_accumulate, message, result, made.peer, place, MPI.SUM)


class _FetchAndOp(_Sums):
    def operation(self) -> Step:
        from mpi4py import MPI

        made = self.made
        message, result = (b.message(1, self.point.datatype) for b in (self.origin, self.result))
        return partial(made.window.Fetch_and_op, message, result, made.peer, made.start, MPI.SUM)


class _CompareAndSwap(_Sums):
    """The first swap of an iteration finds what it compares with; the others find what it has written."""

    def __init__(self, point: Point, made: Target) -> None:
        super().__init__(point, made)
        self.compared = buffers.for_rank(point.options, made.rank, point.size)

    def operation(self) -> Step:
        made = self.made
        message, compared, result = (
            b.message(1, self.point.datatype) for b in (self.origin, self.compared, self.result)
        )
        return partial(made.window.Compare_and_swap, message, compared, result, made.peer, made.start)

    def fill(self, iteration: int) -> None:
        super().fill(iteration)
        self.compared.write(self.there(iteration, self.made.peer))

    def there(self, iteration: int, target: int) -> Any:
        return super().there(iteration, target) + _SMALL  # never what is written

    def after(self, iteration: int, *, source: int, target: int, times: int) -> Any:
        return self.added(iteration, source) if times else self.there(iteration, target)


def _measure(operations: Callable[[Point, Target], _Sums], point: Point) -> Result:
    with rma.target(point, point.size) as made:
        data = operations(point, made)
        steps = rma.to_and_fro(made, point, [data.operation()])
        exchange = Exchange(rma.looped(steps), data.fill, data.check)
        timed = time_exchange(point, exchange, rma.settled(made, point))
    share = rma.round_trip_share(point.options) * 1e6
    samples = [seconds * share for seconds in timed.each]
    return Result((timed.seconds * share / point.iterations,), timed.errors, samples)


def _no_floats(options: Options, ranks: int) -> None:
    rma.fits(options, ranks)
    if "mpi_float" in options.types:
        raise UsageError("MPI_Compare_and_swap does not support floating-point numbers: use -T mpi_char,mpi_int")


def _atomic(name: str, title: str, operations: Callable[[Point, Target], _Sums], *, one_element: bool) -> Benchmark:
    return Benchmark(
        name,
        title,
        partial(_measure, operations),
        "latency",
        "mixwscuTzd",
        LATENCY,
        check=_no_floats if name == "cas_latency" else rma.fits,
        opening=rma.opening,
        reprint=True,
        one_element=one_element,
        verdicts=("passed", "failed"),
        buffers=rma.BUFFERS,
    )


BENCHMARKS = (
    _atomic("acc_latency", "MPI_Accumulate%s latency Test", _Accumulate, one_element=False),
    _atomic("get_acc_latency", "MPI_Get_accumulate latency Test", _GetAccumulate, one_element=False),
    _atomic("fop_latency", "MPI_Fetch_and_op%s latency Test", _FetchAndOp, one_element=True),
    _atomic("cas_latency", "MPI_Compare_and_swap%s latency Test", _CompareAndSwap, one_element=True),
)

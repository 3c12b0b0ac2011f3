"""Overlap of non-blocking collectives with computation, measured as OMB does.

First the collective alone, from its start to its end: the pure communication time. Then each iteration starts it,
computes for as long as that took on this rank, and waits. With ``-t N`` the computation is cut into N parts, each
followed by an ``MPI_Test``. Overlap is the part of the pure communication time that did not add to the overall time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hidl_workloads.omb.benchmark import Column, Point, Result
from hidl_workloads.omb.collective_calls import Collective
from hidl_workloads.omb.collective_timing import Call, mean_samples, operation, reduced, time_calls

OVERLAP = (
    Column("Overall(us)", "overall"),
    Column("Compute(us)", "compute"),
    Column("Coll. Init(us)", "collective_init", when="full"),
    Column("MPI_Test(us)", "test", when="full"),
    Column("MPI_Wait(us)", "wait", when="full"),
    Column("Pure Comm.(us)", "pure_communication"),
    Column("Min Comm.(us)", "pure_communication_min", when="full"),
    Column("Max Comm.(us)", "pure_communication_max", when="full"),
    Column("Overlap(%)", "overlap", "%"),
)

_DIMENSION = 25  # size of the matrix in the dummy computation, as in OMB


def measure_overlap(collective: Collective, point: Point) -> Result:
    """One figure for each column of ``OVERLAP``: means over ranks and iterations."""
    from mpi4py import MPI

    world = point.communicator
    with operation(point, collective, "nonblocking") as prepared:
        alone = time_calls(prepared)
        pure = alone.seconds / point.iterations
        parts = Parts(point, pure)
        together = time_calls(prepared, parts.overlapped)
    per_iteration = 1e6 / point.iterations
    own = [total * per_iteration for total in (together.seconds, parts.compute, parts.start, parts.test, parts.wait)]
    overall, compute, start, test, wait, mean = (
        total / world.size for total in reduced(world, [*own, pure * 1e6], MPI.SUM)
    )
    least, most = (reduced(world, [pure * 1e6], op)[0] for op in (MPI.MIN, MPI.MAX))
    overlap = overlap_percent(overall, compute, mean)
    values = (overall, compute, start, test, wait, mean, least, most, overlap)
    return Result(values, alone.errors + together.errors, mean_samples(point, together.each))


def overlap_percent(overall: float, compute: float, pure: float) -> float:
    """OMB's: 100 where all of the communication hides behind the computation, 0 where none does. Any unit of time."""
    return max(0.0, 100.0 - (overall - compute) / pure * 100.0) if pure else 0.0


class Parts:
    """Sums of the seconds that timed iterations spent on starting, computing, testing and waiting."""

    def __init__(self, point: Point, compute_seconds: float) -> None:
        self.start = self.compute = self.test = self.wait = 0.0
        self._untimed = point.warmup
        self._tests = point.options.num_test_calls
        self._seconds = compute_seconds / max(1, self._tests)
        self._compute = dummy_computation()

    def overlapped(self, call: Call) -> tuple[float, Any]:
        """Start the call, compute, wait: the seconds of the whole."""
        from mpi4py import MPI

        clock = MPI.Wtime
        begin = clock()
        request = call.start()
        started = clock()
        tested = 0.0
        if not self._tests:
            self._compute(self._seconds)
        for _ in range(self._tests):
            self._compute(self._seconds)
            before = clock()
            request.Test()
            tested += clock() - before
        computed = clock()
        request.Wait()
        end = clock()
        if self._untimed:
            self._untimed -= 1
        else:
            self.start += started - begin
            self.compute += computed - started - tested
            self.test += tested
            self.wait += end - computed
        return end - begin, None


def dummy_computation() -> Callable[[float], None]:
    """Return a computation of a given number of seconds: products of a small matrix until the time is over."""
    import numpy as np
    from mpi4py import MPI

    clock = MPI.Wtime
    matrix = np.full((_DIMENSION, _DIMENSION), 1.0 / _DIMENSION, np.float32)
    vector, product = np.ones(_DIMENSION, np.float32), np.zeros(_DIMENSION, np.float32)

    def compute(seconds: float) -> None:
        end = clock() + seconds
        while clock() < end:
            np.dot(matrix, vector, out=product)

    return compute

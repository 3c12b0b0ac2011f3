"""The timed loop: the whole of it, or each iteration by itself; MPI's clock, no garbage collection within."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hidl_workloads.omb.benchmark import Point


def _nothing(iteration: int) -> None:
    """Nothing to fill."""


def _no_errors(iteration: int) -> int:
    """Nothing to check."""
    return 0


def _no_wait() -> None:
    """Nothing to wait for."""


@dataclass(frozen=True)
class Exchange:
    """The part of one rank at one point."""

    repeat: Callable[[int], None]
    """Repeat it: a loop of its own, so that nothing but what is measured lies within."""
    fill: Callable[[int], None] = _nothing
    """With -c: write what this iteration sends, and spoil what it receives into."""
    check: Callable[[int], int] = _no_errors
    """With -c: how many elements that arrived in this iteration are wrong."""


@dataclass(frozen=True)
class Timed:
    """The seconds of all timed iterations together; with -z those of each; and the errors that -c found."""

    seconds: float
    each: list[float]
    errors: int


def time_exchange(
    point: Point, exchange: Exchange, after: Callable[[], None] | None = None, before: Callable[[], None] | None = None
) -> Timed:
    """Warm up, wait for all ranks, and time ``point.iterations`` of ``exchange`` on this rank.

    With -c each iteration is filled, waited for by all, exchanged ``validation_warmup`` times untimed and once timed,
    and checked, as OMB does. ``after`` (a barrier, in collectives) is called after each iteration and ``before`` (one
    among pairs) before each exchange, out of the time; they too make each iteration timed by itself.
    """
    if point.options.validation:
        return _validated(point, exchange, after or _no_wait, before or _no_wait)
    exchange.repeat(point.warmup)
    point.communicator.Barrier()
    if point.options.tail_lat or after or before:
        each = _each(point.iterations, exchange.repeat, after or _no_wait, before or _no_wait)
        return Timed(sum(each), each, 0)
    return Timed(_whole(point.iterations, exchange.repeat), [], 0)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within, Python's collector of cycles does not come in between."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _whole(iterations: int, repeat: Callable[[int], None]) -> float:
    from mpi4py import MPI

    clock = MPI.Wtime
    with no_garbage_collection():
        start = clock()
        repeat(iterations)
        return float(clock() - start)


def _each(
    iterations: int, repeat: Callable[[int], None], after: Callable[[], None], before: Callable[[], None]
) -> list[float]:
    from mpi4py import MPI

    clock = MPI.Wtime
    each = [0.0] * iterations
    with no_garbage_collection():
        for iteration in range(iterations):
            before()
            start = clock()
            repeat(1)
            each[iteration] = clock() - start
            after()
    return each


def _validated(point: Point, exchange: Exchange, after: Callable[[], None], before: Callable[[], None]) -> Timed:
    from mpi4py import MPI

    clock, barrier, repeat = MPI.Wtime, point.communicator.Barrier, exchange.repeat
    each, errors = [], 0
    with no_garbage_collection():
        for iteration in range(point.warmup + point.iterations):
            exchange.fill(iteration)
            barrier()
            for _ in range(point.options.validation_warmup):
                before()
                repeat(1)
            before()
            start = clock()
            repeat(1)
            seconds = clock() - start
            after()
            if iteration >= point.warmup:
                each.append(seconds)
            errors += exchange.check(iteration)
    return Timed(sum(each), each, errors)

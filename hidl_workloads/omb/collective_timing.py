"""A collective at one message size: its buffers, its calls in one of three forms, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import Datatype, Point, Result
from hidl_workloads.omb.collective_calls import Collective
from hidl_workloads.omb.collective_shape import Ends, Shape
from hidl_workloads.omb.neighborhood import Neighborhood, neighborhood
from hidl_workloads.omb.timing import Timed, no_garbage_collection

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

Form = Literal["blocking", "nonblocking", "persistent"]

# The number up to which all whole numbers are exact in the datatype.
_LARGEST = {"i1": 127, "i4": (1 << 31) - 1, "f4": 1 << 24}


@dataclass(frozen=True)
class Call:
    """One rank's call, with one root."""

    shape: Shape
    once: Callable[[], Any]
    """The call from its start to its end; gives what a pickling call gives."""
    start: Callable[[], Any]
    """Only the start of one that does not block; gives the request."""
    free: Callable[[], None]


class Operation:
    """A collective at one point, on this rank: its buffers, filled and checked with -c, and its calls."""

    def __init__(
        self, point: Point, collective: Collective, form: Form, communicator: MPI.Comm, near: Neighborhood | None
    ) -> None:
        self.point, self.collective, self.form = point, collective, form
        self.communicator, self.near = communicator, near
        options, size = point.options, point.datatype.size
        self.pickled = options.buffer == "pickle"
        shape = self._shape(root=options.root_rank or 0)
        sends, receives = collective.sends(shape), collective.receives(shape)
        if options.in_place:
            receives = max(sends, receives)
        room = partial(buffers.for_rank, options, shape.rank)
        self.sent = room(sends * size)
        self.received = room(receives * size)
        # With -c, untimed exchanges must not leave the data in the buffer that the timed call should write there.
        self.spare = room(receives * size) if options.validation else self.received
        self._calls: dict[tuple[int, bool], Call] = {}

    def call(self, iteration: int, *, timed: bool = True) -> Call:
        """The call of this iteration; with ``-k rotate`` the root is another in each."""
        options = self.point.options
        root = iteration % self.point.communicator.size if options.root_rank is None else options.root_rank
        if (root, timed) not in self._calls:
            self._calls[root, timed] = self._make(root, timed)
        return self._calls[root, timed]

    def fill(self, iteration: int) -> None:
        """Write this rank's vector where the call of this iteration takes it from; spoil what it receives into."""
        shape = self.call(iteration).shape
        if not self.pickled:
            spoiled = self.received.size // self.point.datatype.size
            self.received.write(buffers.pattern(spoiled, self.point.datatype, iteration + 1, shape.rank))
        vector = self._vector(shape, iteration, shape.rank)
        where, start = self.sent, 0
        if self.collective.own and (shape.in_place or (self.collective.one_buffer and shape.at_root)):
            where, start = self.received, self.collective.own(shape)
        where.write(vector, start * self.point.datatype.size)
        if self.pickled and where is not self.sent:
            self.sent.write(vector)

    def wrong(self, iteration: int, arrived: Any) -> int:
        """Count the wrong elements in the result of this iteration's call."""
        shape = self.call(iteration).shape
        expected = self.collective.expected(shape, partial(self._vector, shape, iteration))
        if expected is None or not expected.size:
            return 0
        if self.pickled:
            return _differing(arrived, expected)
        return buffers.differences(self.received, expected)

    def free(self) -> None:
        """Free the persistent requests."""
        for call in self._calls.values():
            call.free()

    def _shape(self, root: int, in_place: bool = False) -> Shape:
        rank, ranks = self.point.communicator.rank, self.point.communicator.size
        return Shape(rank, ranks, self.point.count, root, in_place, self.near)

    def _vector(self, shape: Shape, iteration: int, source: int) -> NDArray[Any]:
        count = self.collective.sends(replace(shape, rank=source, in_place=False))
        if self.collective.reduces:
            return summand(count, self.point.datatype, iteration, source, shape.ranks)
        return buffers.pattern(count, self.point.datatype, iteration, source)

    def _make(self, root: int, timed: bool) -> Call:
        collective = self.collective
        at_root = not collective.rooted or self.point.communicator.rank == root
        shape = self._shape(root, in_place=timed and self.point.options.in_place and at_root)
        ends = Ends(shape, self.point.datatype, self.sent, self.received if timed else self.spare)
        name = collective.name
        if self.pickled and collective.pickled:
            once = partial(getattr(self.communicator, name), *collective.pickled(ends))
            return Call(shape, once, once, _nothing_to_free)
        arguments = collective.arguments(ends)
        if self.form == "blocking":
            once = partial(getattr(self.communicator, name.capitalize()), *arguments)
            return Call(shape, once, once, _nothing_to_free)
        if self.form == "nonblocking":
            start = partial(getattr(self.communicator, f"I{name}"), *arguments)
            return Call(shape, lambda: start().Wait(), start, _nothing_to_free)
        request = getattr(self.communicator, f"{name.capitalize()}_init")(*arguments)
        return Call(shape, lambda: _start_and_wait(request), request.Start, request.Free)


def _start_and_wait(request: Any) -> None:
    request.Start()
    request.Wait()


def _nothing_to_free() -> None:
    """Nothing to free."""


def _differing(arrived: Any, expected: NDArray[Any]) -> int:
    import numpy as np

    found = np.concatenate(arrived) if isinstance(arrived, list) else np.asarray(arrived)
    if found.shape != expected.shape:
        return int(expected.size)
    return int(np.count_nonzero(found != expected))


def summand(count: int, datatype: Datatype, iteration: int, source: int, ranks: int) -> NDArray[Any]:
    """Return the addend of ``source`` in a sum over ``ranks``: a pattern so small that no sum overflows.

    An overflowing sum of MPI_CHAR has no one right value: MPICH 5.0 wraps it around, Open MPI 5.0 saturates it.
    """
    import numpy as np

    largest = _LARGEST[datatype.numpy]
    apart = -(-ranks // largest)  # one rank in this many contributes values other than zeros
    senders = -(-ranks // apart)
    # All elements would have the same sum over whole periods of the pattern, so one sender contributes zeros.
    aside = source == 0 and senders % buffers.PERIOD == 0
    highest = 0 if source % apart or aside else min(largest // senders, buffers.PERIOD - 1)
    one_more = np.dtype(datatype.numpy).type(highest + 1)
    values: NDArray[Any] = buffers.pattern(count, datatype, iteration, source) % one_more
    return values


@contextmanager
def operation(point: Point, collective: Collective, form: Form) -> Iterator[Operation]:
    """The operation on all ranks of the point, on its neighbourhood where the collective has one."""
    if not collective.neighbors:
        prepared = Operation(point, collective, form, point.communicator, None)
        yield prepared
        prepared.free()
        return
    near = neighborhood(point.options.nhbr, point.communicator.size)
    communicator = near.communicator(point.communicator)
    prepared = Operation(point, collective, form, communicator, near)
    yield prepared
    prepared.free()
    communicator.Free()


def time_calls(prepared: Operation, timed: Callable[[Call], tuple[float, Any]] | None = None) -> Timed:
    """Call as often as the point says and time each call by itself, as OMB does; a barrier follows each.

    ``timed`` makes a call and gives the seconds that count and what arrived; None: from its start to its end.
    With -c every iteration, also those to warm up, is filled, made ``validation_warmup`` times untimed, and checked.
    """
    point, make = prepared.point, timed or _from_start_to_end()
    barrier = point.communicator.Barrier
    after = barrier if prepared.collective.name != "barrier" else _nothing_to_free
    each, errors = [], 0
    barrier()
    with no_garbage_collection():
        for iteration in range(point.warmup + point.iterations):
            if point.options.validation:
                _exchange_untimed(prepared, iteration)
            seconds, arrived = make(prepared.call(iteration))
            after()
            if iteration >= point.warmup:
                each.append(seconds)
            if point.options.validation:
                errors += prepared.wrong(iteration, arrived)
    barrier()
    return Timed(sum(each), each, errors)


def _exchange_untimed(prepared: Operation, iteration: int) -> None:
    barrier = prepared.point.communicator.Barrier
    prepared.fill(iteration)
    untimed = prepared.call(iteration, timed=False).once
    for _ in range(prepared.point.options.validation_warmup):
        barrier()
        untimed()
    barrier()


def _from_start_to_end() -> Callable[[Call], tuple[float, Any]]:
    from mpi4py import MPI

    clock = MPI.Wtime

    def make(call: Call) -> tuple[float, Any]:
        once = call.once
        start = clock()
        arrived = once()
        return clock() - start, arrived

    return make


def measure_latency(collective: Collective, form: Form, point: Point) -> Result:
    """Average, minimum and maximum over the ranks of each rank's mean time, in microseconds."""
    from mpi4py import MPI

    with operation(point, collective, form) as prepared:
        timed = time_calls(prepared)
    mean = [timed.seconds * 1e6 / point.iterations]
    world = point.communicator
    least, most, total = (reduced(world, mean, op)[0] for op in (MPI.MIN, MPI.MAX, MPI.SUM))
    values = (total / world.size, least, most, float(point.iterations))
    return Result(values, timed.errors, mean_samples(point, timed.each))


def reduced(communicator: MPI.Comm, values: Sequence[float], op: MPI.Op) -> list[float]:
    """The values of all ranks, element by element; rank 0's are the result."""
    import numpy as np

    result = np.zeros(len(values))
    communicator.Reduce(np.array(values), result, op)
    return [float(value) for value in result]


def mean_samples(point: Point, each: Sequence[float]) -> list[float]:
    """With -z: for each iteration the mean over the ranks, in microseconds."""
    from mpi4py import MPI

    if not point.options.tail_lat:
        return []
    return [seconds * 1e6 / point.communicator.size for seconds in reduced(point.communicator, each, MPI.SUM)]

"""One-sided communication: windows of three kinds, and what each synchronization has the two ranks do.

What a rank does in one iteration is a list of steps, calls that are bound to their arguments before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import Benchmark, Point, title
from hidl_workloads.omb.buffers import Buffer, MemoryBuffer
from hidl_workloads.omb.latency import exactly_two
from hidl_workloads.omb.options import Options, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

Step = Callable[[], Any]
BUFFERS = frozenset({"bytearray", "numpy", "cupy", "torch", "numba"})

ACTIVE = ("pscw", "fence")
"""Synchronizations in which the target takes part."""

_WINDOWS = {"create": "MPI_Win_create", "allocate": "MPI_Win_allocate", "dynamic": "MPI_Win_create_dynamic"}
_SYNCHRONIZATIONS = {
    "lock": "MPI_Win_lock/unlock",
    "pscw": "MPI_Win_post/start/complete/wait",
    "fence": "MPI_Win_fence",
    "flush": "MPI_Win_flush",
    "flush_local": "MPI_Win_flush_local",
    "lock_all": "MPI_Win_lock_all/unlock_all",
}


def fits(options: Options, ranks: int) -> None:
    """Raise ``UsageError`` without two ranks, and for a window of MPI's memory where buffers lie on a device."""
    exactly_two(options, ranks)
    if options.win_options == "allocate" and any(buffers.on_device(options, rank) for rank in range(2)):
        raise UsageError("MPI allocates windows on the host (-w allocate); for device memory, use -w create or dynamic")


def opening(benchmark: Benchmark, options: Options, ranks: int) -> str:
    """The title, and how windows are made and synchronized."""
    return (
        f"{title(benchmark, options)}# Window creation: {_WINDOWS[options.win_options]}\n"
        f"# Synchronization: {_SYNCHRONIZATIONS[options.sync_option]}\n"
    )


class Target:
    """A window of ``size`` bytes on both ranks: the memory that is this rank's part, and where the peer's begins."""

    def __init__(self, point: Point, size: int) -> None:
        from mpi4py import MPI

        communicator = point.communicator
        self.rank, self.peer = communicator.rank, 1 - communicator.rank
        self.kind = point.options.win_options
        self.start = 0
        self.memory: Buffer
        if self.kind == "allocate":
            self.window = MPI.Win.Allocate(size, 1, comm=communicator)
            self.memory = MemoryBuffer(self.window.tomemory())
            return
        self.memory = buffers.for_rank(point.options, self.rank, size)
        if self.kind == "create":
            self.window = MPI.Win.Create(self.memory.memory, 1, comm=communicator)
            return
        self.window = MPI.Win.Create_dynamic(comm=communicator)
        self.window.Attach(self.memory.memory)
        self.start = communicator.sendrecv(MPI.Get_address(self.memory.memory), self.peer, source=self.peer)

    def place(self, count: int, point: Point, number: int = 0) -> tuple[int, int, MPI.Datatype]:
        """``count`` elements of the peer's part: those of the ``number``-th message."""
        return (self.start + number * point.size, count, point.datatype.mpi)

    def free(self) -> None:
        """Give the window back; both ranks call this."""
        if self.kind == "dynamic":
            self.window.Detach(self.memory.memory)
        self.window.Free()


@contextmanager
def target(point: Point, size: int) -> Iterator[Target]:
    """A window of ``size`` bytes that is freed at the end; within a lock of the peer for flushes, as in OMB."""
    from mpi4py import MPI

    made = Target(point, size)
    holds = point.options.sync_option in ("flush", "flush_local") and made.rank == 0
    if holds:
        made.window.Lock(made.peer, MPI.LOCK_SHARED)
    try:
        yield made
    finally:
        if holds:
            made.window.Unlock(made.peer)
        point.communicator.Barrier()
        made.free()


def to_and_fro(made: Target, point: Point, operations: Sequence[Step]) -> list[Step]:
    """Rank 0 operates on rank 1; with active synchronization then rank 1 on rank 0, which makes a round trip."""
    synchronization = point.options.sync_option
    if synchronization == "fence":
        fence = partial(made.window.Fence, 0)
        return [fence, *operations, fence, fence] if made.rank == 0 else [fence, fence, *operations, fence]
    if synchronization == "pscw":
        group = peer_group(point)
        access = [partial(made.window.Start, group), *operations, made.window.Complete]
        exposure = [partial(made.window.Post, group), made.window.Wait]
        return [*access, *exposure] if made.rank == 0 else [*exposure, *access]
    return _passive(made, synchronization, operations)


def one_way(made: Target, point: Point, operations: Sequence[Step]) -> list[Step]:
    """Rank 0 operates on rank 1."""
    synchronization = point.options.sync_option
    if synchronization == "fence":
        fence = partial(made.window.Fence, 0)
        return [fence, *operations, fence] if made.rank == 0 else [fence, fence]
    if synchronization == "pscw":
        group = peer_group(point)
        if made.rank == 0:
            return [partial(made.window.Start, group), *operations, made.window.Complete]
        return [partial(made.window.Post, group), made.window.Wait]
    return _passive(made, synchronization, operations)


def both_at_once(made: Target, point: Point, operations: Sequence[Step]) -> list[Step]:
    """Each rank operates on the other in the same epoch."""
    if point.options.sync_option == "fence":
        fence = partial(made.window.Fence, 0)
        return [fence, *operations, fence]
    group = peer_group(point)
    window = made.window
    return [partial(window.Post, group), partial(window.Start, group), *operations, window.Complete, window.Wait]


def _passive(made: Target, synchronization: str, operations: Sequence[Step]) -> list[Step]:
    from mpi4py import MPI

    window, peer = made.window, made.peer
    if made.rank != 0:
        return []
    around: dict[str, tuple[list[Step], Step]] = {
        "lock": ([partial(window.Lock, peer, MPI.LOCK_SHARED)], partial(window.Unlock, peer)),
        "lock_all": ([window.Lock_all], window.Unlock_all),
        "flush": ([], partial(window.Flush, peer)),
        "flush_local": ([], partial(window.Flush_local, peer)),
    }
    before, after = around[synchronization]
    return [*before, *operations, after]


def peer_group(point: Point) -> MPI.Group:
    """The group of the other rank alone."""
    return point.communicator.Get_group().Incl([1 - point.communicator.rank])


def looped(steps: Sequence[Step]) -> Callable[[int], None]:
    """Repeat the steps ``times`` times. Two and three of them have loops without an inner one: a put, a flush."""
    if not steps:
        return lambda times: None
    if len(steps) == 2:
        return _pairs(*steps)
    if len(steps) == 3:
        return _triples(*steps)

    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            for step in steps:
                step()

    return exchange


def _pairs(first: Step, second: Step) -> Callable[[int], None]:
    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            first()
            second()

    return exchange


def _triples(first: Step, second: Step, third: Step) -> Callable[[int], None]:
    def exchange(times: int) -> None:
        for _ in repeat(None, times):
            first()
            second()
            third()

    return exchange


def settled(made: Target, point: Point) -> Callable[[], None] | None:
    """With -c: what comes after an iteration, so that its data is there when it is looked at."""
    if not point.options.validation:
        return None
    barrier: Callable[[], None] = point.communicator.Barrier
    if point.options.sync_option != "flush_local" or made.rank != 0:
        return barrier

    def settle() -> None:
        made.window.Flush(made.peer)
        barrier()

    return settle


def round_trip_share(options: Options) -> float:
    """Return the share of one operation in an iteration; active synchronization has one in each direction."""
    return 0.5 if options.sync_option in ACTIVE else 1.0

"""The MPI world of this process: its ranks as torch numbers them, their cores, and how they end."""

from __future__ import annotations

import atexit
import faulthandler
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import mpi4py

mpi4py.rc.finalize = False  # mpi4py finalizes MPI in forked children too, which breaks the parent's connections

from mpi4py import MPI  # noqa: E402

from mpi4c10d import engine, launcher  # noqa: E402
from mpi4c10d.failures import Failures  # noqa: E402

T = TypeVar("T")

#: Seconds that a failed rank leaves to the others to report their errors before it aborts the job.
_GRACE = 5.0
#: Seconds for each kind of the library's threads to end.
_JOIN = 5.0
#: Seconds for the set-up of the world if the default group has another backend.
_SETUP = 300.0
#: Tags of communicator creation: below every MPI's upper bound.
_TAGS = 32000


class World:
    """The ranks of ``COMM_WORLD`` in torch's order, set up once for a process.

    Args:
        rank: this process's rank in torch's numbering.
        size: number of ranks that torch expects.
        seconds: timeout of the set-up.
    """

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        check_size(size)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError("mpi4c10d requires an MPI that grants MPI_THREAD_MULTIPLE")
        self.rank, self.size = rank, size
        self.communicator = within(seconds, "set-up of the world", lambda: MPI.COMM_WORLD.Split(0, rank))
        self.failures = Failures(within(seconds, "set-up of the world", self.communicator.Dup))
        self._look_around(seconds)
        self.inits = 0
        self._process = os.getpid()
        atexit.register(self._at_exit)

    def subgroup(self, ranks: Sequence[int], name: str, seconds: float) -> MPI.Comm:
        """Return a new communicator of these ranks, all of which call this."""
        group = self.communicator.Get_group().Incl(list(ranks))
        tag = zlib.crc32(name.encode()) % _TAGS
        return within(seconds, f"creation of group {name}", lambda: self.communicator.Create_group(group, tag))

    def _look_around(self, seconds: float) -> None:
        """Find the ranks on this host, and whether it offers them fewer cores than they are."""
        mine = socket.gethostname(), os.sched_getaffinity(0), os.getpid()
        everybody = within(seconds, "set-up of the world", lambda: self.communicator.allgather(mine))
        here = {rank: each for rank, each in enumerate(everybody) if each[0] == mine[0]}
        self.crowded = len(here) > len(frozenset().union(*(cores for _, cores, _ in here.values())))
        self.failures.watch({rank: pid for rank, (_, _, pid) in here.items() if rank != self.rank})

    def _at_exit(self) -> None:
        """End the job if this rank or another has failed, and leave the others time to report it.

        ``MPI_Finalize`` waits for all ranks and for messages that are never received, thus a failed rank aborts.
        Python calls this after it has joined the threads that are no daemons, which may wait for operations.
        """
        if os.getpid() != self._process or MPI.Is_finalized():
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self.failures.leave(f"ended with {type(error).__name__}: {error}")
            engine.close(0.0, _JOIN)
            self.failures.wait_for_others(_GRACE)
            MPI.COMM_WORLD.Abort(1)
        broken = self.failures.any
        engine.close(0.0 if broken else _GRACE, _JOIN)
        broken = broken or self.failures.any
        if broken:  # the program handled the error and ends well; requests that never complete may hold MPI up
            faulthandler.dump_traceback_later(_GRACE, exit=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
        self.failures.stop()
        MPI.Finalize()
        if broken:
            faulthandler.cancel_dump_traceback_later()


_world: World | None = None
_process = os.getpid()


@atexit.register
def _finalize() -> None:
    """Finalize MPI if only the exchange of addresses used it; otherwise the world has done it before."""
    if os.getpid() == _process and not MPI.Is_finalized():
        MPI.Finalize()


def get(rank: int, size: int, seconds: float) -> World:
    """Return the world, which the first call sets up; every rank calls this."""
    global _world  # noqa: PLW0603
    if _world is None:
        _world = World(rank, size, seconds)
    elif (_world.rank, _world.size) != (rank, size):
        raise RuntimeError(f"rank {_world.rank} of {_world.size} cannot become rank {rank} of {size}")
    return _world


def existing() -> World:
    """Return the world, or set it up from the default group if that has another backend; every rank calls this then."""
    import torch.distributed as dist

    return _world or get(dist.get_rank(), dist.get_world_size(), _SETUP)


def check_size(size: int) -> None:
    """Raise if MPI has started another number of ranks than torch expects."""
    if launcher.under_torchrun():
        raise RuntimeError(
            f"torchrun starts processes that are no MPI ranks\nhint: start the program with: {launcher.command(size)}"
        )
    ranks = MPI.COMM_WORLD.Get_size()
    if size != ranks:
        raise RuntimeError(
            f"torch.distributed expects {size} ranks (WORLD_SIZE), MPI has started {ranks}"
            f"\nhint: start the program with: {launcher.command(size)}"
        )


def set_master(seconds: float) -> None:
    """Set MASTER_ADDR and MASTER_PORT to an address of rank 0, which MPI sends to all ranks."""
    rank = int(os.environ["RANK"])
    mine = ""
    if rank == 0:
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        with socket.socket() as listener:
            listener.bind(("", 0))
            mine = f"{'127.0.0.1' if alone else socket.gethostname()} {listener.getsockname()[1]}"
    addresses = within(seconds, "exchange of addresses", lambda: MPI.COMM_WORLD.allgather(mine))
    host, port = next(address for address in addresses if address).split()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, port


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Return the result of a blocking MPI call, or raise if it takes longer than that.

    MPI cannot interrupt the call: the thread in which it waits remains.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise RuntimeError(f"{what}: timed out after {time.monotonic() - began:.0f} s: a rank does not take part")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result

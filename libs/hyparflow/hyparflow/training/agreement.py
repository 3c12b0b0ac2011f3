"""Agreement of all ranks: common errors, collectives, and random numbers.

The collectives do not occupy a core while they wait (see ``hyparflow.engine.world.wait``).
"""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hyparflow import errors
from hyparflow.engine.world import wait
from hyparflow.errors import HyparflowError, PlanError, RequestError, WorldError
from hyparflow.training.layout import Array

T = TypeVar("T")

#: The process number that launchers set (MPICH and derivatives, Open MPI, MVAPICH2, PMIx, Slurm).
_LAUNCHERS_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_PATIENCE_SECONDS = 20.0


def together(comm: Any, action: Callable[[], T]) -> T:
    """Run an action on every rank; if it fails on any, all ranks raise the error of the lowest of those ranks.

    Such an error has the attribute ``agreed_on``: the rank that prints it if it is not caught. Errors other than
    HyparflowError and Python's own become a HyparflowError on the other ranks. An error that all ranks have already
    raised together is passed on.
    """
    result: T
    error: Exception | None = None
    try:
        result = action()
    except Exception as caught:
        if hasattr(caught, "agreed_on"):
            raise
        error = caught
    known = isinstance(error, HyparflowError)
    every = gather_all(comm, None if error is None else (type(error).__name__, str(error), known))
    first = next((rank for rank, found in enumerate(every) if found is not None), None)
    if first is None:
        return result
    if error is None or comm.rank != first:
        name, text, known = every[first]
        if error is None or (type(error).__name__, str(error)) != (name, text):
            error = getattr(errors, name)(text) if known else _of_kind(name, text)
    assert error is not None
    raise agreed(error, first)


def _of_kind(name: str, text: str) -> Exception:
    """Return another rank's error, with the same type if that is Python's own, so that ``except`` works everywhere."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # UnicodeError and others require more arguments
            return kind(text)
    return HyparflowError(f"{name}: {text}")


def check_same(comm: Any, call: str) -> None:
    """Wait until all ranks are in this call, and print a notice if that takes long.

    Raises:
        RequestError: The ranks are in different calls; raised on all ranks.
    """
    text = (
        f"hyparflow: rank {comm.rank} waits in {call} for the others: all ranks must call it, because each has a part "
        "of the model; after hyparflow.gather(model), one rank can read and save it alone\n"
    )
    notice = threading.Timer(_PATIENCE_SECONDS, lambda: sys.stderr.write(text))
    notice.daemon = True
    notice.start()
    try:
        meet(comm)
    finally:
        notice.cancel()
    calls: list[str] = comm.allgather(call)
    if len(set(calls)) > 1:
        other = next(rank for rank, found in enumerate(calls) if found != calls[0])
        raise agreed(
            RequestError(f"rank 0 calls {calls[0]} and rank {other} {calls[other]}: all ranks must call the same")
        )


def agreed(error: Exception, rank: int = 0) -> Exception:
    """Mark an error as raised by all ranks together and printed by ``rank``."""
    error.agreed_on = rank  # type: ignore[attr-defined]
    return error


def check_whole_images(spatial: int) -> None:
    """Raise PlanError if a plan divides images, whose parts have no metrics."""
    if spatial > 1:
        raise agreed(
            PlanError(
                f"the plan divides images into {spatial} parts, which only hyparflow.engine trains: "
                "make the plan without spatial"
            )
        )


def check_world(size: int, partitions: int, replicas: int) -> None:
    """Raise WorldError if the number of ranks does not match a training.

    If many processes are started without a common world, each has a world of size 1. The launcher's number then
    determines which of them prints the error.
    """
    if partitions < 1 or replicas < 1:
        raise agreed(WorldError(f"partitions and replicas must be at least 1, not {partitions} and {replicas}"))
    needed = partitions * replicas
    if size == needed:
        return
    number = next((os.environ[name] for name in _LAUNCHERS_RANK if name in os.environ), "0")
    text = f"{partitions} partitions x {replicas} replicas need {needed} ranks, and this world has {size}"
    raise agreed(
        WorldError(
            f"{text}: start it with `mpiexec -n {needed} python ...`, with the launcher of mpi4py's MPI library"
        ),
        rank=0 if size > 1 or number == "0" else -1,
    )


def meet(comm: Any) -> None:
    """Wait until all ranks are here."""
    wait(comm.Ibarrier())


def gather_all(comm: Any, value: Any) -> list[Any]:
    """Return every rank's value on every rank."""
    meet(comm)
    found: list[Any] = comm.allgather(value)
    return found


def sum_equal(comm: Any, own: Array) -> Array:
    """Return the sum over the ranks, with the same bits on each; an allreduce may round differently per rank."""
    total = np.empty_like(own)
    wait(comm.Ireduce(own, total, root=0))
    wait(comm.Ibcast(total, root=0))
    return total


def any_of(comm: Any, asked: bool) -> bool:
    """Return whether the value is true on any rank."""
    return bool(sum_equal(comm, np.array([asked], dtype=np.int64))[0])


def share_random_state(comm: Any) -> None:
    """Copy the state of Python's and NumPy's random numbers from rank 0 to all ranks; collective.

    Keras' initializers and layers draw their seeds from Python's. Rank 0's state does not change, so it draws the same
    numbers as one process after the same ``keras.utils.set_random_seed``.
    """
    meet(comm)
    of_python, of_numpy = comm.bcast((random.getstate(), np.random.get_state()), root=0)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def shared_seed(comm: Any) -> int:
    """Return a seed derived from rank 0's state, without changing it; the same on all ranks; collective."""
    other = random.Random()
    other.setstate(random.getstate())
    meet(comm)
    return int(comm.bcast(other.randrange(2**31), root=0))

"""What all ranks decide together: whether a request can be fulfilled, and what went wrong if not.

Collectives whose waiting takes no core from who computes: see ``hyparflow.engine.world``.

Random numbers that all ranks draw alike.
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
from hyparflow.errors import HyparflowError, RequestError, WorldError
from hyparflow.training.layout import Array

T = TypeVar("T")

#: The number that launchers give to a process (MPICH and its kin, Open MPI, MVAPICH2, PMIx, Slurm).
_LAUNCHERS_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_PATIENCE_SECONDS = 20.0


def together(comm: Any, action: Callable[[], T]) -> T:
    """Do something on every rank; if it fails on any, all raise what the lowest of those ranks raised.

    Such an error has ``agreed_on``: the rank that says it, where nobody catches it. Errors of other kinds than
    HyparflowError and Python's own become one on the other ranks. One that all ranks have raised together within the
    action is raised as it is.
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
    """What another rank has raised: of the same kind if that is Python's own, so that ``except`` catches it on all."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # UnicodeError and the like take more than a text
            return kind(text)
    return HyparflowError(f"{name}: {text}")


def check_same(comm: Any, call: str) -> None:
    """Meet with all ranks in a call; one that waits for long says for what.

    :raises RequestError: on all ranks, where they are in different calls.
    """
    text = (
        f"hyparflow: rank {comm.rank} waits in {call} for the others: all ranks must call it, for each holds a part of "
        "the model; after hyparflow.gather(model) one rank can read and save it alone\n"
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
    """The error, marked as one that all ranks raise together, and ``rank`` says."""
    error.agreed_on = rank  # type: ignore[attr-defined]
    return error


def check_world(size: int, partitions: int, replicas: int) -> None:
    """Raise WorldError where ``size`` ranks are not those that a training needs.

    Each of many processes that do not know of each other has a world of size 1: the launcher's number decides then
    which of them says it.
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
            f"{text}: start it with `mpiexec -n {needed} python ...`, of the MPI library that mpi4py is built on"
        ),
        rank=0 if size > 1 or number == "0" else -1,
    )


def meet(comm: Any) -> None:
    """Return when all ranks are here."""
    wait(comm.Ibarrier())


def gather_all(comm: Any, value: Any) -> list[Any]:
    """Every rank's value, on every rank."""
    meet(comm)
    found: list[Any] = comm.allgather(value)
    return found


def sum_equal(comm: Any, own: Array) -> Array:
    """The sum over the ranks, the same bits on each: an allreduce may round differently on different ranks."""
    total = np.empty_like(own)
    wait(comm.Ireduce(own, total, root=0))
    wait(comm.Ibcast(total, root=0))
    return total


def any_of(comm: Any, asked: bool) -> bool:
    """Whether any rank asks."""
    return bool(sum_equal(comm, np.array([asked], dtype=np.int64))[0])


def share_random_state(comm: Any) -> None:
    """Give all ranks rank 0's state of Python's and NumPy's random numbers; collective.

    Keras' initializers and layers draw their seeds from Python's. Rank 0 goes on where it was: what it draws is what
    one process would draw after the same ``keras.utils.set_random_seed``.
    """
    meet(comm)
    of_python, of_numpy = comm.bcast((random.getstate(), np.random.get_state()), root=0)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def shared_seed(comm: Any) -> int:
    """A seed that follows from rank 0's state, which stays as it is; the same on all ranks; collective."""
    other = random.Random()
    other.setstate(random.getstate())
    meet(comm)
    return int(comm.bcast(other.randrange(2**31), root=0))

"""What all ranks decide together: whether a request can be fulfilled, and what went wrong if not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hyparflow import errors
from hyparflow.errors import HyparflowError, WorldError
from hyparflow.training.collectives import gather_all

T = TypeVar("T")

#: The number that launchers give to a process (MPICH and its kin, Open MPI, MVAPICH2, PMIx, Slurm).
_LAUNCHERS_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def together(comm: Any, action: Callable[[], T]) -> T:
    """Do something on every rank; if it fails on any, all raise what the lowest of those ranks raised.

    Such an error has ``agreed_on``: the rank that says it, where nobody catches it. Errors of other kinds than
    HyparflowError become one on the other ranks. One that all ranks have raised together within the action is raised
    as it is.
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
        error = getattr(errors, name)(text) if known else HyparflowError(f"{name}: {text}")
    raise agreed(error, first)


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

"""The libraries that hold the data: NumPy and pandas, or CuPy and cuDF on one GPU for each worker."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hidl_workloads import gpus

if TYPE_CHECKING:
    from mpi4py import MPI

Device = Literal["cpu", "gpu"]

_ARRAYS: dict[Device, str] = {"cpu": "numpy", "gpu": "cupy"}
_FRAMES: dict[Device, str] = {"cpu": "pandas", "gpu": "cudf"}


class NoDevice(Exception):
    """Computing on GPUs requires something that is not available."""


def arrays(device: Device) -> Any:
    """The array library, with NumPy's names. Raises ``NoDevice`` where it is not installed."""
    return _library(_ARRAYS[device])


def frames(device: Device) -> Any:
    """The data-frame library, with the names of pandas. Raises ``NoDevice`` where it is not installed."""
    return _library(_FRAMES[device])


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NoDevice(f"{name} cannot be imported ({error}); computing on GPUs requires it in the stack") from error


def take_turns(world: MPI.Comm, first_worker: int) -> None:
    """Let the workers of a node use its GPUs in turn; every rank of ``world`` calls this before any touches a GPU.

    A worker computes in several threads, and each of them begins with the first visible GPU. Without a GPU, raises
    ``NoDevice``.
    """
    from mpi4py import MPI

    neighbours = world.Split_type(MPI.COMM_TYPE_SHARED)
    workers = neighbours.allgather(world.rank >= first_worker)
    mine = sum(workers[: neighbours.rank])
    neighbours.Free()
    try:
        gpus.take(os.environ, mine)
    except gpus.NoGpu as error:
        raise NoDevice(f"no GPU for rank {world.rank}: {error}") from error


def chosen() -> Device:
    """Return what the run computes on."""
    return "gpu" if gpus.is_wanted() else "cpu"

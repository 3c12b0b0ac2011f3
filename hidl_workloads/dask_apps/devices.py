"""The libraries that hold the data: NumPy and pandas, or CuPy and cuDF on one GPU for each worker."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_workloads.dask_apps.parameters import Device

if TYPE_CHECKING:
    from mpi4py import MPI

_ARRAYS: dict[Device, str] = {"cpu": "numpy", "gpu": "cupy"}
_FRAMES: dict[Device, str] = {"cpu": "pandas", "gpu": "cudf"}
_GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class NoDevice(Exception):
    """What ``device=gpu`` needs is not there."""


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
        raise NoDevice(f"{name} cannot be imported ({error}); device=gpu needs it in the stack") from error


def take_turns(world: MPI.Comm, first_worker: int) -> None:
    """Let the workers of a node use its GPUs in turn; every rank of ``world`` calls this before any touches a GPU.

    A worker computes in several threads, and CUDA's current device belongs to a thread: so it is the visible devices
    that are narrowed, to one. The scheduler and the client see what they saw. Raises ``NoDevice`` where there is none.
    """
    from mpi4py import MPI

    neighbours = world.Split_type(MPI.COMM_TYPE_SHARED)
    workers = neighbours.allgather(world.rank >= first_worker)
    mine = sum(workers[: neighbours.rank])
    neighbours.Free()
    visible = visible_gpus(os.environ.get(_VISIBLE), _GPUS)
    if not visible:
        raise NoDevice(f"rank {world.rank} sees no GPU: ${_VISIBLE} is {os.environ.get(_VISIBLE)!r}")
    if world.rank >= first_worker:
        os.environ[_VISIBLE] = visible[mine % len(visible)]


def visible_gpus(named: str | None, directory: Path) -> list[str]:
    """The GPUs that a process may use: those that ``CUDA_VISIBLE_DEVICES`` names, else all that the driver shows."""
    if named is not None:
        return [word.strip() for word in named.split(",") if word.strip()]
    return [str(number) for number in range(len(list(directory.iterdir())))] if directory.is_dir() else []

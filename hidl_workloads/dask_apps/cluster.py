"""Dask on the ranks of one MPI world: the scheduler on rank 0, the client on rank 1, a worker on each other one."""

from __future__ import annotations

import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_workloads.dask_apps.devices import chosen, take_turns
from hidl_workloads.parameters import Dask

if TYPE_CHECKING:
    from mpi4py import MPI

#: Number of ranks that are not workers: the scheduler and the client.
OVERHEAD = 2
#: The rank of the client.
CLIENT = 1
_LOG_LENGTH = 1_000_000  # number of transfers that a worker remembers


def start(world: MPI.Comm, parameters: Dask, threads: int) -> bool:
    """Bring Dask up; every rank of ``world``, three or more, calls this, and only the client's call returns True.

    The others' calls return False, once the client has called ``close``.
    """
    import dask

    if chosen() == "gpu":
        take_turns(world, OVERHEAD)
    # The pages are turned off, because they require no authentication.
    no_pages: dict[str, list[str]] = {f"distributed.{process}.http.routes": [] for process in ("scheduler", "worker")}
    dask.config.set({"distributed.admin.low-level-log-length": _LOG_LENGTH, **no_pages})
    options: dict[str, Any] = {
        "nthreads": threads,
        "dashboard": False,
        "dashboard_address": ":0",  # a different port for each job
        "interface": parameters.interface or None,
        "worker_class": "distributed.Worker",
        "exit": False,
    }
    with _private_directory() as private, dask.config.set(temporary_directory=str(private)):
        if parameters.protocol == "mpi":
            import mpi4dask

            is_client: bool = mpi4dask.initialize(world, **options)
        else:
            import dask_mpi

            is_client = dask_mpi.initialize(comm=world, protocol="tcp", **options)
    return is_client


@contextmanager
def _private_directory() -> Iterator[Path]:
    """A directory for what workers spill, and unpickle again, that no other user can write to or read.

    It is the same for all of the user's workers on this node, and stays: there Dask removes what workers have left
    that were killed. Where another user has taken its name, it is a new one that is removed at the end.
    """
    known = Path(tempfile.gettempdir(), f"hidl-dask-{os.getuid()}-{platform.node()}")
    if _is_private(known):
        yield known
    else:
        with tempfile.TemporaryDirectory(prefix="hidl-dask-") as directory:
            yield Path(directory)


def _is_private(directory: Path) -> bool:
    """Make the directory unless something has its name; whether it is this user's alone."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def close(protocol: Literal["tcp", "mpi"]) -> None:
    """End the scheduler and the workers; the client calls this."""
    if protocol == "mpi":
        import mpi4dask

        mpi4dask.shutdown()
    else:
        import dask_mpi

        dask_mpi.send_close_signal()

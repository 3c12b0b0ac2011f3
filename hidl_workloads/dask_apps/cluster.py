"""Dask on the ranks of one MPI world: the scheduler on rank 0, the client on rank 1, a worker on each other one."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, Literal

from hidl_workloads.dask_apps.devices import chosen, take_turns
from hidl_workloads.parameters import Dask

if TYPE_CHECKING:
    from mpi4py import MPI

#: Ranks that are no workers: the scheduler and the client.
OVERHEAD = 2
#: The rank of the client.
CLIENT = 1
_LOG_LENGTH = 1_000_000  # transfers of one run that a worker remembers


def start(world: MPI.Comm, parameters: Dask, threads: int) -> bool:
    """Bring Dask up; every rank of ``world``, three or more, calls this, and only the client's call returns True.

    The others' calls return False, once the client has called ``close``.
    """
    import dask

    if chosen() == "gpu":
        take_turns(world, OVERHEAD)
    # Pages ask for no token: there are none.
    no_pages: dict[str, list[str]] = {f"distributed.{process}.http.routes": [] for process in ("scheduler", "worker")}
    dask.config.set({"distributed.admin.low-level-log-length": _LOG_LENGTH, **no_pages})
    options: dict[str, Any] = {
        "nthreads": threads,
        "dashboard": False,
        "dashboard_address": ":0",  # a port of its own for each job
        "interface": parameters.interface or None,
        "worker_class": "distributed.Worker",
        "exit": False,
    }
    # Workers unpickle what they have spilled: Dask's own place has a name that other users of the node can take first.
    with tempfile.TemporaryDirectory(prefix="hidl-dask-") as private, dask.config.set(temporary_directory=private):
        if parameters.protocol == "mpi":
            import mpi4dask

            is_client: bool = mpi4dask.initialize(world, **options)
        else:
            import dask_mpi

            is_client = dask_mpi.initialize(comm=world, protocol="tcp", **options)
    return is_client


def close(protocol: Literal["tcp", "mpi"]) -> None:
    """End the scheduler and the workers; the client calls this."""
    if protocol == "mpi":
        import mpi4dask

        mpi4dask.shutdown()
    else:
        import dask_mpi

        dask_mpi.send_close_signal()

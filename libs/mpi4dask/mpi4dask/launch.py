"""Dask on the ranks of an MPI job: `initialize`, which every rank calls, and `shutdown`, which the client calls."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import stat
import struct
import sys
import termios
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpi4dask import monitoring, transport

if TYPE_CHECKING:
    from mpi4py import MPI

_started: MPI.Comm | None = None


def initialize(
    communicator: MPI.Comm | None = None,
    *,
    protocol: str = "mpi",
    nthreads: int = 1,
    memory_limit: str | int | float = "auto",
    local_directory: str | None = None,
    interface: str | None = None,
    dashboard: bool = True,
    dashboard_address: str | None = ":8787",
    worker_class: str = "distributed.Worker",
    worker_options: Mapping[str, Any] | None = None,
    exit: bool = True,
) -> bool:
    """Make a Dask cluster of the ranks: the scheduler is rank 0, rank 1 goes on as the client, the others are workers.

    Collective over `communicator` (default: `MPI.COMM_WORLD`), which is duplicated: nothing else hears what Dask says.
    The rest is done by dask-mpi, and the arguments are those of `dask_mpi.initialize`.

    Only the client's call returns while there is work; it returns True, and `Client()` then needs no address. When
    its program ends, well or by an exception, the cluster ends, and every other rank ends inside of this call. With
    `exit=False` their calls return False instead, and the client ends the cluster with `shutdown()`. A scheduler or a
    worker that cannot start, or fails, ends all ranks (`MPI_Abort`), for the others would wait for it.

    Raises `dask_mpi.WorldTooSmallException` (a `RuntimeError`) for fewer than 3 ranks.
    """
    global _started  # noqa: PLW0603 - one cluster per process, as one transport
    from mpi4py import MPI

    comm = MPI.COMM_WORLD if communicator is None else communicator
    import dask_mpi

    if comm.Get_size() < 3:
        raise dask_mpi.WorldTooSmallException(
            f"mpi4dask.initialize requires at least 3 ranks (scheduler, client, worker), got {comm.Get_size()}: "
            "start the program with mpiexec -n 3 or more"
        )
    with failure_ends_all_ranks(comm):
        transport.start(comm)
        monitoring.enable()
        is_client: bool = dask_mpi.initialize(
            interface=interface,
            nthreads=nthreads,
            local_directory=local_directory,
            memory_limit=memory_limit,
            dashboard=dashboard,
            dashboard_address=dashboard_address,
            protocol=protocol,
            worker_class=worker_class,
            worker_options=dict(worker_options or {}),
            comm=comm,
            exit=False,
        )
        if not is_client:
            transport.stop()
    if is_client:
        _started = comm
        if exit:
            atexit.register(shutdown)
    elif exit:
        sys.exit()
    return is_client


def shutdown() -> None:
    """End the cluster that `initialize` made; the client calls this. Again, or elsewhere, it does nothing.

    Where the scheduler cannot be reached any more, all ranks are ended.
    """
    global _started
    if _started is None:
        return
    comm, _started = _started, None
    import dask_mpi

    with failure_ends_all_ranks(comm):
        dask_mpi.send_close_signal()
        transport.stop()


@contextlib.contextmanager
def failure_ends_all_ranks(comm: MPI.Comm) -> Iterator[None]:
    """Turn an exception into the end of all ranks (`MPI_Abort`), told on stderr."""
    try:
        yield
    except Exception:
        sys.stderr.write(f"{traceback.format_exc()}mpi4dask: rank {comm.Get_rank()} failed (above); all are ended.\n")
        sys.stderr.flush()
        _wait_until_read(sys.stderr.fileno())
        comm.Abort(1)
        os._exit(1)  # under some launchers MPI_Abort returns: the launcher then ends the others


def _wait_until_read(descriptor: int) -> None:
    """Let the launcher read what is in this pipe, for a second at most: on an abort MPICH's drops what is unread."""
    until = time.monotonic() + 1
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < until:
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        if not unread:
            return
        time.sleep(0.001)

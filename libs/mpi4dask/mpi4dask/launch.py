"""Dask on the ranks of an MPI job: `initialize` for every rank, `shutdown` for the client."""

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

from mpi4dask import monitor, transport

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
    """Start a Dask cluster on the ranks: rank 0 is the scheduler, rank 1 the client, and the others are workers.

    The call is collective over `communicator`, which is duplicated, so Dask's messages are isolated. dask-mpi does the
    rest.

    While the cluster runs, the call returns on the client only. It returns True, and `Client()` then needs no address.
    When the client's program ends, normally or by an exception, the cluster ends, and every other rank exits inside
    this call. With `exit=False`, their calls return False instead, and the client ends the cluster with `shutdown()`.
    If a scheduler or worker fails, all ranks are aborted (`MPI_Abort`), because the others would wait for it.

    Args:
        communicator: An mpi4py communicator (default: `MPI.COMM_WORLD`).
        protocol: Dask's protocol (default: `mpi`).
        exit: Exit on the ranks other than the client when the cluster ends.

    The other arguments are those of `dask_mpi.initialize`.

    Raises:
        dask_mpi.WorldTooSmallException: There are fewer than 3 ranks (a `RuntimeError`).
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
        monitor.enable()
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
    """End the cluster that `initialize` started; the client calls this. Further calls do nothing.

    If the scheduler is unreachable, all ranks are aborted.
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
    """Abort all ranks (`MPI_Abort`) if an exception is raised, and print it to stderr."""
    try:
        yield
    except Exception:
        sys.stderr.write(f"{traceback.format_exc()}mpi4dask: rank {comm.Get_rank()} failed (above); all are ended.\n")
        sys.stderr.flush()
        _wait_until_read(sys.stderr.fileno())
        comm.Abort(1)
        os._exit(1)  # MPI_Abort returns under some launchers, which end the other ranks when this one exits


def _wait_until_read(descriptor: int) -> None:
    """Wait at most a second until the launcher has read this pipe. On an abort, MPICH's drops unread output."""
    until = time.monotonic() + 1
    while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < until:
        (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
        if not unread:
            return
        time.sleep(0.001)

"""Join the ranks of a job whose program knows nothing of mpi4dask: the command `dask-mpi --protocol mpi`.

There nobody calls `transport.start()` on all ranks at once: the scheduler listens before the other ranks have begun. So
each rank joins from a thread when its first listener or connector is made, and connections wait for that. The
communicator is made by `MPI_Comm_create_group`, which, other than `MPI_Comm_dup`, may go on beside collective calls of
the program's own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from concurrent.futures import Future
from typing import Any

from mpi4dask import endpoint, transport

logger = logging.getLogger("mpi4dask")

_TAG = 20801  # of the group's own traffic; any that nobody else uses for the same

_lock = threading.Lock()
_joined: Future[None] | None = None


def begin() -> None:
    """Begin to join, once, where this process is one of several ranks and `transport.start()` has not run."""
    global _joined  # noqa: PLW0603 - one MPI world per process
    MPI = sys.modules.get("mpi4py.MPI")  # importing it would initialise MPI
    with _lock:
        if _joined is not None or endpoint.current_world() is not None or MPI is None:
            return
        if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
            return
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return
        _joined = Future()
    logger.info("mpi:// joins the ranks of this job; all of them must use it (or call mpi4dask.initialize)")
    threading.Thread(target=_join, args=(MPI, _joined), name="mpi4dask-join", daemon=True).start()


async def joined() -> None:
    """Wait until joining is over, where it has begun."""
    if _joined is not None and not _joined.done():
        await asyncio.shield(asyncio.wrap_future(_joined))


def _join(MPI: Any, done: Future[None]) -> None:
    try:
        comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group(), _TAG)
        transport.start(comm)
        comm.Barrier()  # who connects next finds every other rank ready
    except Exception:
        logger.warning("The ranks could not be joined: mpi:// uses sockets alone", exc_info=True)
    done.set_result(None)

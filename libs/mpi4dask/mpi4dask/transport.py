"""Start and stop the MPI side of mpi:// in this process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import threading
from concurrent.futures import Future
from typing import Any

import dask.config

from mpi4dask import authentication, configuration, endpoint, world
from mpi4dask.errors import NotStartedError

logger = logging.getLogger("mpi4dask")
_TAG = 20801  # of the group's own traffic; any that nobody else uses for the same
_lock = threading.Lock()
_joined: Future[None] | None = None


def start(comm: Any = None) -> None:
    """Let mpi:// carry data over MPI between the ranks of `comm` (an mpi4py intracommunicator; default: the world).

    Collective: every rank of `comm` calls it once, before its first mpi:// listener or connection. The communicator
    is duplicated, so the transport's messages never meet those of others. A second call in a process does nothing.
    Where MPI does not grant MPI_THREAD_MULTIPLE, sockets carry the data, and a warning says so.
    """
    from mpi4py import MPI

    if endpoint.current_world() is not None:
        return
    comm = MPI.COMM_WORLD if comm is None else comm
    settings = configuration.load()
    joined = world.join(comm, settings.token_file, settings.use_direct)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        logger.warning("MPI does not grant MPI_THREAD_MULTIPLE: mpi:// uses sockets alone")
        return
    endpoint.use_world(joined)
    _keep_children_out_of_mpi()
    atexit.register(stop)  # runs before mpi4py ends MPI


def _keep_children_out_of_mpi() -> None:
    """Let the workers of Nannies import mpi4py without initialising MPI.

    They inherit the launcher's variables, would take themselves for this rank, and die.
    """
    name = "distributed.nanny.pre-spawn-environ"
    dask.config.set({name: {**dask.config.get(name), "MPI4PY_RC_INITIALIZE": "0", "MPI4PY_RC_FINALIZE": "0"}})


def stop() -> None:
    """Give back what the transport holds of MPI. Local; connections of this process must be closed by then."""
    if endpoint.current_world() is None:
        return
    endpoint.close_all()
    endpoint.use_world(None)


def started() -> bool:
    """Whether `start()` has made MPI available to mpi:// in this process."""
    return endpoint.current_world() is not None


def token() -> str:
    """The token that programs outside the job need: they put it into the environment as MPI4DASK_TOKEN.

    Raise NotStartedError where there is no job.
    """
    if not started():
        raise NotStartedError("mpi4dask.transport.start() has not run in this process, so there is no job's token")
    return authentication.process_token().decode()


def begin_to_join() -> None:
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
        start(comm)
        comm.Barrier()  # who connects next finds every other rank ready
    except Exception:
        logger.warning("The ranks could not be joined: mpi:// uses sockets alone", exc_info=True)
    done.set_result(None)

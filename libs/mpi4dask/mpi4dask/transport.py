"""Start and end of the MPI transport in this process.

The command `dask-mpi --protocol mpi` runs programs that know nothing of mpi4dask and do not call `start()` on all ranks
at once: the scheduler listens before the other ranks have started. In that case each rank joins from a thread when it
creates its first listener or connector, and connections wait for that. The communicator comes from
`MPI_Comm_create_group`, which, unlike `MPI_Comm_dup`, can run concurrently with the program's own collectives.
"""

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
_TAG = 20801  # tag of the group's own traffic; no other code may use it for the same purpose
_lock = threading.Lock()
_joined: Future[None] | None = None


def start(comm: Any = None) -> None:
    """Let mpi:// carry data over MPI between the ranks of `comm`.

    The call is collective: every rank of `comm` calls it once, before its first mpi:// listener or connection. The
    communicator is duplicated, so the transport's messages are isolated. Further calls in a process do nothing. If MPI
    does not grant MPI_THREAD_MULTIPLE, sockets carry the data, and a warning is logged.

    Args:
        comm: An mpi4py intracommunicator (default: the world).
    """
    from mpi4py import MPI

    if endpoint.current_world() is not None:
        return
    comm = MPI.COMM_WORLD if comm is None else comm
    settings = configuration.load()
    joined = world.join(comm, settings.token_file, settings.use_direct)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        logger.warning("MPI does not grant MPI_THREAD_MULTIPLE: mpi:// uses sockets only")
        return
    endpoint.use_world(joined)
    _keep_children_out_of_mpi()
    atexit.register(stop)  # runs before mpi4py finalizes MPI


def _keep_children_out_of_mpi() -> None:
    """Let the workers of Nannies import mpi4py without initialising MPI.

    They inherit the launcher's variables; if they initialised MPI, they would pose as this rank and crash.
    """
    name = "distributed.nanny.pre-spawn-environ"
    dask.config.set({name: {**dask.config.get(name), "MPI4PY_RC_INITIALIZE": "0", "MPI4PY_RC_FINALIZE": "0"}})


def stop() -> None:
    """Release the MPI resources of the transport. Not collective; close this process's connections first."""
    if endpoint.current_world() is None:
        return
    endpoint.close_all()
    endpoint.use_world(None)


def started() -> bool:
    """Return whether `start()` has made MPI available to mpi:// in this process."""
    return endpoint.current_world() is not None


def token() -> str:
    """Return the token that programs outside the job need in the environment variable MPI4DASK_TOKEN.

    Raises:
        NotStartedError: There is no job.
    """
    if not started():
        raise NotStartedError("mpi4dask.transport.start() has not run in this process, so there is no job token")
    return authentication.process_token().decode()


def begin_to_join() -> None:
    """Start to join the other ranks, once, if there are any and `transport.start()` has not run."""
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
    """Wait until joining is complete, if it has started."""
    if _joined is not None and not _joined.done():
        await asyncio.shield(asyncio.wrap_future(_joined))


def _join(MPI: Any, done: Future[None]) -> None:
    try:
        comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group(), _TAG)
        start(comm)
        comm.Barrier()  # every rank is ready before the next connection
    except Exception:
        logger.warning("Cannot join the ranks of this job: mpi:// uses sockets only", exc_info=True)
    done.set_result(None)

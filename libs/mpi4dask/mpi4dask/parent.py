"""Termination of this process with another one, so that no rank outlives the notebook's kernel."""

from __future__ import annotations

import os
import select
import shutil
import threading
import time
from collections.abc import Callable

PARENT = "MPI4DASK_PARENT"
DIRECTORY = "MPI4DASK_DIRECTORY"
_PERIOD = 1.0  # seconds between checks if the system has no pidfd


def watch(pid: int, then: Callable[[], object]) -> None:
    """Call `then` from a thread when the process `pid` has ended."""
    threading.Thread(target=_wait, args=(pid, then), name="mpi4dask-parent", daemon=True).start()


def follow_named() -> None:
    """Exit with status 1 when the process `$MPI4DASK_PARENT` ends, if that is set.

    The directory `$MPI4DASK_DIRECTORY` is removed too, because the process that created it no longer can.
    """

    def end() -> None:
        if DIRECTORY in os.environ:
            shutil.rmtree(os.environ[DIRECTORY], ignore_errors=True)
        os._exit(1)

    named = os.environ.get(PARENT, "")
    if named.isdecimal():
        watch(int(named), end)


def _wait(pid: int, then: Callable[[], object]) -> None:
    try:
        descriptor = os.pidfd_open(pid)  # Linux 5.3 and later
    except ProcessLookupError:
        then()
        return
    except (AttributeError, OSError):
        while _lives(pid):
            time.sleep(_PERIOD)
        then()
        return
    select.select([descriptor], [], [])
    then()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is alive, but belongs to another user
        return True
    return True

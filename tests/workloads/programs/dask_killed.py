"""A Dask worker that is killed after it has left a file, ``spilled``, where it spills to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from distributed import Client, Worker
from mpi4py import MPI

from hidl_workloads.dask_apps import cluster
from hidl_workloads.parameters import Dask


def leave_and_die(dask_worker: Worker) -> None:
    """Take place on the worker."""
    Path(dask_worker.local_directory, "spilled").touch()
    os.kill(os.getpid(), signal.SIGKILL)


if cluster.start(MPI.COMM_WORLD, Dask(protocol="mpi"), 1):
    with Client() as client:
        client.wait_for_workers(1)
        client.run(leave_and_die)

"""Ranks that fail while the others wait for them in MPI: ``failing.py HOW VICTIM``."""

from __future__ import annotations

import os
import signal
import sys
import time

from hyparflow.errors import DataError
from hyparflow.training.agreement import together
from hyparflow.training.guard import guard
from mpi4py import MPI

comm = MPI.COMM_WORLD
how, victim = sys.argv[1], int(sys.argv[2])


def refuse() -> None:
    if comm.rank >= victim:
        raise DataError(f"rank {comm.rank} refuses")


def mistake() -> None:
    raise ValueError("our common fault")


watch = guard(comm)
if how == "typo":
    refuse(whom=1)  # type: ignore[call-arg]
with watch.working(comm):
    if how == "together":
        mistake()
    if how == "interrupt":
        if victim in (comm.rank, -1):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    if how == "refuse":
        together(comm, refuse)
    comm.Barrier()
    if comm.rank == victim:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise ValueError("my own fault")
        sys.exit(7)
    comm.Recv(bytearray(8), source=(comm.rank + 1) % comm.size)

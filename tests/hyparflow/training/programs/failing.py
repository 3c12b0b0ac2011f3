"""Ranks that fail while the others wait for them in MPI: ``failing.py HOW VICTIM``.

``strays``: none fails, and others than ranks connect first: one that says nothing, one that leaves, one that resets,
one that says something else.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from typing import Any

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


def visited(*arguments: Any, **options: Any) -> socket.socket:
    """A listener to which strangers have connected before anybody else."""
    listener = create_server(*arguments, **options)
    silent, leaving, resetting, talking = (socket.create_connection(listener.getsockname()) for _ in range(4))
    leaving.close()
    resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    resetting.close()
    talking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    strangers.extend((silent, talking))
    return listener


strangers: list[socket.socket] = []
create_server = socket.create_server
if how == "strays":
    socket.create_server = visited
watch = guard(comm)
if how == "strays":
    with watch.working(comm):
        print(f"rank {comm.rank} started, knows {sorted(watch._peers.values())}", flush=True)
    sys.exit()
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

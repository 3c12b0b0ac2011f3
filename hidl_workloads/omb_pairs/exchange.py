"""Measurements between two ranks, as OMB's ``osu_latency`` and ``osu_bw`` make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

WINDOW = 64
"""Messages on their way at once, as in ``osu_bw``."""

_TAG = 7


def latency(communicator: MPI.Comm, peer: int, size: int, iterations: int, warmup: int) -> float:
    """Half a round trip of ``size`` bytes in us, the mean of ``iterations``; both ranks of the pair call this."""
    from mpi4py import MPI

    message, room = np.zeros(size, "u1"), np.zeros(size, "u1")
    first = communicator.rank < peer

    def exchange(times: int) -> None:
        for _ in range(times):
            if first:
                communicator.Send((message, MPI.BYTE), peer, _TAG)
                communicator.Recv((room, MPI.BYTE), peer, _TAG)
            else:
                communicator.Recv((room, MPI.BYTE), peer, _TAG)
                communicator.Send((message, MPI.BYTE), peer, _TAG)

    exchange(warmup)
    start = MPI.Wtime()
    exchange(iterations)
    return float(MPI.Wtime() - start) * 1e6 / (2 * iterations)


def bandwidth(communicator: MPI.Comm, peer: int, size: int, iterations: int, warmup: int) -> float:
    """MB/s (10^6 bytes) with ``WINDOW`` messages of ``size`` bytes on their way, in the slower of both directions.

    Both ranks of the pair call this, and both get the figure.
    """
    first = communicator.rank < peer
    there = _one_way(communicator, peer, size, iterations, warmup, sends=first)
    back = _one_way(communicator, peer, size, iterations, warmup, sends=not first)
    slower = min(there, back)  # each sender measured its own direction; the value for the other direction is infinite
    return float(min(slower, communicator.sendrecv(slower, peer, _TAG, source=peer, recvtag=_TAG)))


def _one_way(communicator: MPI.Comm, peer: int, size: int, iterations: int, warmup: int, *, sends: bool) -> float:
    from mpi4py import MPI

    buffer, answer = np.zeros(size, "u1"), np.zeros(4, "u1")
    start = 0.0
    for iteration in range(warmup + iterations):
        if iteration == warmup:
            start = MPI.Wtime()
        if sends:
            MPI.Request.Waitall([communicator.Isend((buffer, MPI.BYTE), peer, _TAG) for _ in range(WINDOW)])
            communicator.Recv((answer, MPI.BYTE), peer, _TAG)
        else:
            MPI.Request.Waitall([communicator.Irecv((buffer, MPI.BYTE), peer, _TAG) for _ in range(WINDOW)])
            communicator.Send((answer, MPI.BYTE), peer, _TAG)
    return size * WINDOW * iterations / float(MPI.Wtime() - start) / 1e6 if sends else float("inf")

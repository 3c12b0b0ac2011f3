"""Rank 1 fails in the way that the argument names, while the others wait for it."""

from __future__ import annotations

import sys

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    if sys.argv[1] == "exception":
        raise RuntimeError("rank 1 has had enough")
    sys.exit(int(sys.argv[1]))
MPI.COMM_WORLD.Barrier()

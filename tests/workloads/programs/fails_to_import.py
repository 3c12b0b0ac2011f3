"""Fails to import on rank 1 only, as where a node lacks a library."""

from __future__ import annotations

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    raise ImportError("libsomething.so.7: cannot open shared object file")

"""Errors that end all ranks with one message."""

from __future__ import annotations

from mpi4py import MPI


class Refused(Exception):
    """The program cannot or must not go on; every rank raises it, with the same message."""


def agree(communicator: MPI.Comm, fault: str | None) -> None:
    """Raise ``Refused`` on every rank where one of them has a ``fault``; collective. The first rank's is told."""
    faults = communicator.allgather(fault)
    found = [(rank, each) for rank, each in enumerate(faults) if each is not None]
    if not found:
        return
    (rank, first), others = found[0], len(found) - 1
    several = f", and {others} other rank(s) failed too" if others else ""
    raise Refused(f"{first} (rank {rank}{several})" if communicator.size > 1 else first)

"""Errors that end all ranks with one message."""

from __future__ import annotations

from mpi4py import MPI


class Refused(Exception):
    """The program cannot or must not go on; every rank raises it, with the same message."""


def agree(communicator: MPI.Comm, fault: str | None) -> None:
    """Raise ``Refused`` on every rank where one of them has a ``fault``; collective. The first rank's is told."""
    faults = communicator.allgather(fault)
    failed = [rank for rank, each in enumerate(faults) if each is not None]
    if not failed:
        return
    first = faults[failed[0]]
    if all(each == first for each in faults):
        raise Refused(first)
    others = f", and {len(failed) - 1} other rank(s) failed too" if len(failed) > 1 else ""
    raise Refused(f"{first} (rank {failed[0]}{others})")

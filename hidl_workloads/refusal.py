"""Errors that end all ranks with one message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI


class Refused(Exception):
    """The program cannot run as requested; raised on every rank with the same message."""


def agree(communicator: MPI.Comm, fault: str | None) -> None:
    """Raise ``Refused`` on every rank if one of them has a ``fault``, with the first rank's message; collective."""
    faults = communicator.allgather(fault)
    failed = [rank for rank, each in enumerate(faults) if each is not None]
    if not failed:
        return
    first = faults[failed[0]]
    if all(each == first for each in faults):
        raise Refused(first)
    others = f", and {len(failed) - 1} other rank(s) failed too" if len(failed) > 1 else ""
    raise Refused(f"{first} (rank {failed[0]}{others})")


@contextmanager
def exit_if_refused(communicator: MPI.Comm, program: str) -> Iterator[None]:
    """End all ranks if the program is refused; rank 0 prints the reason. Every rank enters this context."""
    try:
        yield
    except Refused as error:
        if communicator.rank == 0:
            sys.stderr.write(f"{program}: {error}\n")
            sys.stderr.flush()
        # Only rank 0 fails, after it has printed the reason. Otherwise, messages about the other ranks would hide it.
        communicator.Barrier()
        sys.exit(0 if communicator.rank else 1)

"""Collective operations that fail on all ranks if these enter different ones.

A rank that has fewer batches, skips a step or ends would leave the others waiting forever. A rank that waits longer
than a moment sends its position to the others, as does a rank that ends; these positions prove a deadlock, whatever
the speed of any rank. There is no time limit, and while no rank waits, nothing is sent.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

import numpy as np
from mpi4py import MPI

from hidl_workloads.training.data_parallel.allreduce import Request
from hidl_workloads.world import failure_ends_all_ranks

SECONDS = 3.0
"""A rank that waits longer tells the others in which operation."""
_LOOK_SECONDS = 0.1
_EXIT_SECONDS = 0.005
_MOST_NUMBERS = 11
"""Numbers of the operation that has most; all exchange as many, as different ones may meet."""
_END = "the end of its program"

_ORDERS: list[CallOrder] = []


class Position(NamedTuple):
    """The position of a rank: number and name of the last operation that it began, and True if it failed there."""

    number: int
    operation: str
    failed: bool


class CallOrder:
    """The collective operations of the ranks of ``communicator``, in order; the constructor is collective."""

    def __init__(self, communicator: MPI.Comm) -> None:
        self.failure = ""
        """Why no operation can follow; empty if nothing failed."""
        self.communicator = communicator.Dup()
        self._own = Position(0, "", False)
        self._others: dict[int, Position] = {}
        self._told = self._own
        self._sent: list[MPI.Request] = []
        self._counting = threading.Lock()  # TensorFlow may wait in several threads

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Begin the next operation, for all of whose requests this rank waits by ``wait``.

        Raises ``RuntimeError`` where another rank has ended or failed, or waits in another operation: on all ranks,
        which take part in no further ones, as after an exception inside.
        """
        with self._counting:
            self._own = Position(self._own.number + 1, name, False)
        self._check()
        try:
            yield
        except BaseException:
            if not self.failure:
                self._own = self._own._replace(failed=True)
                self.failure = _after_failure(self.communicator.rank, name)
                self._tell()
            raise

    def wait(self, request: Request) -> None:
        """Complete ``request``, of an operation that takes all ranks."""
        began = time.perf_counter()
        look = began + _LOOK_SECONDS
        while not request.Test():
            now = time.perf_counter()
            if now < look:
                continue
            look = now + _LOOK_SECONDS
            if now - began > SECONDS:
                self._tell()
            self._check()

    def largest(self, *numbers: int) -> list[int]:
        """Return the largest of each number over the ranks; part of an operation.

        Raises ``RuntimeError`` on all ranks if these are in different operations.
        """
        mark = crc32(self._own.operation.encode())
        padding = [0] * (_MOST_NUMBERS - len(numbers))
        found = np.array([mark, -mark, *numbers, *padding], np.int64)
        self.wait(self.communicator.Iallreduce(MPI.IN_PLACE, found, MPI.MAX))
        if found[0] != -found[1]:
            names = self.communicator.allgather(self._own.operation)
            other = next(rank for rank, name in enumerate(names) if name != names[0])
            self.failure = _apart((0, names[0]), (other, names[other]))
            raise RuntimeError(self.failure)
        return [int(number) for number in found[2 : 2 + len(numbers)]]

    def meet(self, name: str, *numbers: int) -> list[int]:
        """Return the largest of each number over the ranks, as an operation of its own."""
        with self.operation(name):
            return self.largest(*numbers)

    def end(self) -> None:
        """Tell the others that this rank begins no more operations; ends all ranks after a failure."""
        if self.failure:
            with failure_ends_all_ranks():  # pending requests would block MPI_Finalize
                sys.exit(f"hidl: {self.failure}")
        self._own = Position(self._own.number + 1, _END, False)
        self._tell()

    def has_ended(self) -> bool:
        """Return True if all ranks have announced their end and all messages are received."""
        self._receive()
        ended = sum(other.operation == _END for other in self._others.values())
        return ended == self.communicator.size - 1 and bool(MPI.Request.Testall(self._sent))

    def _tell(self) -> None:
        """Send this rank's position to all others, once."""
        if self._told == self._own:
            return
        self._told = self._own
        others = (rank for rank in range(self.communicator.size) if rank != self.communicator.rank)
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent += [self.communicator.isend(tuple(self._own), rank) for rank in others]

    def _receive(self) -> None:
        status = MPI.Status()
        while (message := self.communicator.improbe(status=status)) is not None:
            self._others[status.Get_source()] = Position(*message.recv())

    def _check(self) -> None:
        """Raise ``RuntimeError`` if a rank will never come to this operation."""
        if not self.failure:
            self._receive()
            wrong = next((rank for rank, other in self._others.items() if _never_meet(self._own, other)), None)
            if wrong is None:
                return
            self._tell()
            self.failure = self._why(wrong, self._others[wrong])
        raise RuntimeError(self.failure)

    def _why(self, rank: int, other: Position) -> str:
        """Say why ``rank`` never comes to this operation."""
        if other.failed:
            return _after_failure(rank, other.operation)
        return _apart(*sorted([(self.communicator.rank, self._own.operation), (rank, other.operation)]))


def _never_meet(own: Position, other: Position) -> bool:
    """Return True if a rank that is at ``other`` will never come to ``own``."""
    if other.number == own.number:
        return other.operation != own.operation or other.failed
    return other.number < own.number and other.operation == _END


def _apart(*places: tuple[int, str]) -> str:
    told = " and ".join(f"rank {rank} is at {operation}" for rank, operation in places)
    return f"{told}: all ranks must take the same steps, with the same number of batches"


def _after_failure(rank: int, operation: str) -> str:
    return f"rank {rank} has failed in {operation}, so no more steps are possible"


def order_of(communicator: MPI.Comm) -> CallOrder:
    """Return the one ``CallOrder`` of these ranks; collective."""
    for order in _ORDERS:
        if MPI.Comm.Compare(order.communicator, communicator) == MPI.CONGRUENT:
            return order
    if not _ORDERS:
        atexit.register(_end_all)
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: _end_all()), None)  # MPI_Finalize deletes it
    _ORDERS.append(CallOrder(communicator))
    return _ORDERS[-1]


def _end_all() -> None:
    """Tell the other ranks that this one ends, and wait for their ends, as ``MPI_Finalize`` does."""
    if MPI.Is_finalized():
        return
    for order in _ORDERS:
        order.end()
    while not all(order.has_ended() for order in _ORDERS):
        time.sleep(_EXIT_SECONDS)
    _ORDERS.clear()

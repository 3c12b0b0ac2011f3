"""Sums of flat buffers over all ranks, while the caller goes on computing."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray


class Allreduce:
    """Outstanding sums on a communicator of their own; every rank must start the same buffers in the same order.

    The communicator is duplicated, so nothing else that a program sends can be taken for a gradient: the constructor
    and ``close`` are collective.
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator.Dup()
        self._requests: deque[MPI.Request] = deque()

    def start(self, total: NDArray[Any], part: NDArray[Any] | None = None) -> None:
        """Begin to sum ``part`` into ``total``, or ``total`` in place; neither may be touched until ``finish``.

        Both are flat and contiguous, of the same length and type.
        """
        source = MPI.IN_PLACE if part is None else part
        self._requests.append(self._communicator.Iallreduce(source, total, MPI.SUM))

    def progress(self) -> None:
        """Let MPI go on with what is outstanding, without waiting: most libraries move data only when called."""
        while self._requests and self._requests[0].Test():
            self._requests.popleft()

    def finish(self) -> None:
        """Wait until every sum is complete."""
        while self._requests:
            self._requests.popleft().Wait()

    def close(self) -> None:
        """Give the communicator back."""
        self.finish()
        self._communicator.Free()

    def __enter__(self) -> Allreduce:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # after an error other ranks may never come: neither wait nor free
            self.close()

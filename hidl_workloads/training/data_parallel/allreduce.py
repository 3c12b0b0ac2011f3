"""Sums of flat buffers over all ranks, while the caller goes on computing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

PIECE_BYTES = 4 * 2**20
"""Longer buffers are summed piece by piece, one at a time, so that a piece stays in a cache until it is complete.

Of 0.06 to 16 MiB, 4 MiB was the fastest for 100 MB of float32 on two ranks of a node (benchmarks/README.md).
"""
_LARGEST = {"float16": "65504", "bfloat16": "3.39e38"}
_ALIGNMENT = (
    4096  # in bytes: a page, which GPU drivers pin as a whole; TensorFlow requires 64 for the start of a tensor
)


class Request(Protocol):
    """An operation in progress: a request of MPI, or an object that is waited for in the same way."""

    def Test(self) -> bool:  # as MPI.Request has it
        """Return whether it is complete."""

    def Wait(self) -> object:
        """Wait until it is."""


def wait_for(request: Request) -> None:
    """Wait until ``request`` is complete."""
    request.Wait()


class Allreduce:
    """MPI's own sums, on a communicator of their own; every rank must start the same buffers in the same order.

    The communicator is duplicated, so nothing else that a program sends can be taken for a gradient: the constructor,
    ``buffer`` and ``close`` are collective. One piece is under way at a time: so all ranks call MPI in the same order
    whenever each of them calls, and kinds of sum that take several steps need no more than an iterator of requests.
    Calls of several threads are taken one after the other.

    What a step raises, each later call raises again: this rank has left the order, and other ranks wait for its part.

    Every sum is multiplied by ``share`` (1 / ranks makes it a mean), while the numbers are in a cache anyway. Sums that
    travel ``compressed``, as 16-bit numbers of that name, must be finite: see ``finish``.
    """

    def __init__(self, communicator: MPI.Comm, share: float = 1, compressed: str = "") -> None:
        self._communicator = communicator.Dup()
        self._share = share
        self._compressed = compressed
        self._overflow = False
        self._waiting: deque[tuple[NDArray[Any], Iterator[Request]]] = deque()
        self._request: Request | None = None
        self._fault: Exception | None = None
        self._lock = threading.Lock()

    def buffer(self, size: int, dtype: str) -> NDArray[Any]:
        """Return a flat array of zeros that ``start`` takes; it lives until ``close``."""
        return aligned(size, dtype)

    def start(self, total: NDArray[Any], steps: Iterator[Request] | None = None) -> None:
        """Begin to sum ``total``, an array of ``buffer``, in place; it may not be touched until ``finish``.

        ``steps``: what is to be completed for it instead of its own ``steps``, one after the other.
        """
        with self._lock:
            self._check()
            self._waiting.append((total, self.steps(total) if steps is None else steps))
            if self._request is None:
                self._advance()

    def place(self, total: NDArray[Any], begin: int, addend: NDArray[Any]) -> None:
        """Put ``addend`` into ``total``, an array of ``buffer``, for ``placed_steps``.

        Args:
            total: The buffer; its sum must not be under way.
            begin: The first of its elements to take the addend's place.
            addend: Contiguous numbers of the same type. They may be read until the sum is complete.
        """
        np.copyto(total[begin : begin + len(addend)], addend)

    def placed_steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Return the ``steps`` of a buffer that ``place`` has filled, whose sums ``collect`` reads."""
        return self.steps(total)

    def targets(self, total: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the arrays that take the addends of ``placed_steps``; one behind the other, they are ``total``."""
        return [total]

    def sources(self, total: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the arrays that have the sums of ``placed_steps``; one behind the other, they are ``total``."""
        return [total]

    def collect(self, total: NDArray[Any], begin: int, result: NDArray[Any]) -> None:
        """Copy sums out of ``total``, from element ``begin`` on, into ``result``, which is contiguous."""
        np.copyto(result, total[begin : begin + len(result)])

    def progress(self) -> None:
        """Go on with what is outstanding, without waiting: most MPI libraries move data only when they are called."""
        if self._request is None and self._fault is None:
            return
        with self._lock:
            self._check()
            while self._request is not None and self._request.Test():
                self._advance()

    def complete(self, wait: Callable[[Request], object] = wait_for) -> None:
        """Wait, for each request by ``wait``, until every sum is complete."""
        with self._lock:
            self._check()
            while self._request is not None:
                wait(self._request)
                self._advance()

    def finish(self) -> None:
        """Wait until every sum is complete.

        Raises ``FloatingPointError``, on all ranks alike, where a sum that travelled compressed is infinite or not a
        number; everything is complete then, and the next sums can be started.
        """
        self.complete()
        if self._overflow:
            self._overflow = False
            raise FloatingPointError(
                f"a gradient is not finite after compression to {self._compressed}, whose maximum is "
                f"{_LARGEST[self._compressed]}: the training diverges or the loss scale is too high; skip this step, "
                "or disable compression"
            )

    def close(self) -> None:
        """Give the communicator back."""
        self.finish()
        self._communicator.Free()

    def steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Yield the requests that sum ``total`` over the ranks; complete each before the next."""
        for piece in pieces(total):
            yield self._communicator.Iallreduce(MPI.IN_PLACE, piece, MPI.SUM)
            np.multiply(piece, self._share, out=piece)

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _advance(self) -> None:
        self._request = None
        while self._waiting and self._request is None:
            total, steps = self._waiting[0]
            try:
                self._request = next(steps, None)
            except Exception as error:
                self._fault = error
                raise
            if self._request is None:
                self._waiting.popleft()
                # All ranks have the same sums, so all of them detect this.
                self._overflow |= bool(self._compressed) and not _finite(total)


def _finite(total: NDArray[Any]) -> bool:
    # A sum is only finite if all its addends are. A second pass is only needed if the sum itself overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(total.sum()) or np.isfinite(total).all())


def pieces(total: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield views of ``total``, one behind the other, of at most ``PIECE_BYTES`` each."""
    length = PIECE_BYTES // total.itemsize
    for begin in range(0, len(total), length):
        yield total[begin : begin + length]


def aligned(size: int, dtype: str) -> NDArray[Any]:
    """Return ``size`` zeros that start at a page, and share none with other data."""
    width = np.dtype(dtype).itemsize
    memory = np.zeros(size * width + 2 * _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size * width].view(dtype)

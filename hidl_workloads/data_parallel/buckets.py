"""Averaging arrays over all ranks in buckets, by non-blocking allreduce in place; broadcast; checksums."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def split(sizes: Sequence[int], limit: int) -> list[range]:
    """Cut a sequence of sizes (bytes) into runs of at most ``limit`` bytes each; a larger item is a run of its own."""
    runs: list[range] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            runs.append(range(start, index))
            start, total = index, 0
        total += size
    if sizes:
        runs.append(range(start, len(sizes)))
    return runs


class Reducer:
    """Sums flat arrays over the ranks of a communicator of its own, many under way at once.

    Every rank must start the same arrays in the same order. MPI progresses only inside its calls, so whoever computes
    meanwhile calls ``progress`` now and then.
    """

    def __init__(self, world: Any) -> None:
        self.world = world.Dup()
        self._requests: deque[Any] = deque()

    def start(self, array: Any) -> None:
        """Begin to sum ``array`` (contiguous; the buffer or the DLPack protocol) in place; hands off until ``finish``."""
        from mpi4py import MPI

        if self.world.size > 1:
            self._requests.append(self.world.Iallreduce(MPI.IN_PLACE, array))

    def progress(self) -> None:
        """Let what is under way go on."""
        while self._requests and self._requests[0].Test():
            self._requests.popleft()

    def finish(self) -> None:
        """Wait for all that was started."""
        while self._requests:
            self._requests.popleft().Wait()


def broadcast(world: Any, arrays: Iterable[NDArray[Any]]) -> None:
    """Overwrite every rank's contiguous arrays with rank 0's, as bytes, so that any type will do."""
    for array in arrays:
        world.Bcast(array.reshape(-1).view("uint8"))


def checksum(arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> str:
    """SHA-256 over names, types, shapes and bytes of the arrays, in hexadecimal: equal only for equal models."""
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

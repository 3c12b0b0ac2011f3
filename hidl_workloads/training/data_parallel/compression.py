"""Sums of float32 buffers that travel as 16-bit numbers.

MPI's own types have no portable float16 and no bfloat16, and a user-defined operation would round at every hop. So
each rank sends every other one its share of the buffer as 16-bit numbers (``Ialltoall``), adds what it gets in
float32, in the order of the ranks, and sends the rounded sum of its share to all (``Iallgather``). Every number is
rounded twice, on any number of ranks, and all ranks have bitwise the same sum: that which its owner rounded.

With the unit roundoff u (2**-11 for float16, 2**-8 for bfloat16) and x_r the addend of rank r, times ``share``, the sum
s that comes out differs from the exact one by at most ::

    u * sum(|x_r|) + u * |s| + (ranks + 1) * tiny

where ``tiny`` is 2**-25 for float16 (half its smallest subnormal number) and nothing for bfloat16, besides float32's
own rounding. (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 2.2.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request, pieces

Compression = Literal["none", "float16", "bfloat16"]
Copy = Callable[[NDArray[Any], NDArray[Any]], None]
"""``copy(source, target)``: numbers of the same shape; both are C-contiguous and share no memory."""


@dataclass(frozen=True)
class Halves:
    """A 16-bit type, its bits kept as uint16: to it from float32, rounded to nearest even, and back."""

    name: str
    encode: Copy
    decode: Copy


class CompressedAllreduce(Allreduce):
    """Sums of float32 buffers; only 16 bits of each number are sent. float64 buffers are summed as they are."""

    def __init__(self, communicator: MPI.Comm, halves: Halves, share: float = 1) -> None:
        super().__init__(communicator, share, compressed=halves.name)
        self._halves = halves
        self._scratch: dict[int, _Scratch] = {}

    def steps(self, total: NDArray[Any]) -> Iterator[Request]:
        """Yield the requests; the sum is there after the last one."""
        if total.dtype != np.float32:
            yield from super().steps(total)
            return
        for piece in pieces(total):
            yield from self._piece(piece)

    def _piece(self, piece: NDArray[np.float32]) -> Iterator[Request]:
        ranks = self._communicator.size
        scratch = self._scratch_for(-(-len(piece) // ranks))
        np.multiply(piece, self._share, out=scratch.padded[: len(piece)])  # before the sum, which might exceed float16
        self._halves.encode(scratch.padded, scratch.sent)
        yield self._communicator.Ialltoall(scratch.sent, scratch.received)
        self._halves.decode(scratch.received, scratch.padded)
        by_rank = scratch.padded.reshape(ranks, -1)
        for other in by_rank[1:]:
            np.add(by_rank[0], other, out=by_rank[0])
        self._halves.encode(by_rank[0], scratch.own)
        yield self._communicator.Iallgather(scratch.own, scratch.received)
        self._halves.decode(scratch.received, scratch.padded)
        piece[:] = scratch.padded[: len(piece)]

    def _scratch_for(self, share: int) -> _Scratch:
        if share not in self._scratch:
            self._scratch[share] = _Scratch.make(self._communicator.size, share)
        return self._scratch[share]


@dataclass(frozen=True)
class _Scratch:
    """Buffers of one piece: as float32, padded to equal shares, and as 16-bit numbers, sent and received."""

    padded: NDArray[np.float32]
    sent: NDArray[np.uint16]
    received: NDArray[np.uint16]
    own: NDArray[np.uint16]

    @classmethod
    def make(cls, ranks: int, share: int) -> _Scratch:
        whole = ranks * share
        return cls(
            np.zeros(whole, np.float32), np.zeros(whole, np.uint16), np.zeros(whole, np.uint16),
            np.zeros(share, np.uint16),
        )  # fmt: skip


def numpy_halves(name: str) -> Halves:
    """Return ``float16`` or ``bfloat16`` as NumPy converts them; bfloat16 needs ml_dtypes, which TensorFlow brings."""
    if name == "bfloat16":
        import ml_dtypes

        kind = np.dtype(ml_dtypes.bfloat16)
    else:
        kind = np.dtype(np.float16)

    def encode(source: NDArray[Any], target: NDArray[Any]) -> None:
        with np.errstate(over="ignore"):  # values that are too large become infinite, which is detected in the sum
            np.copyto(target.view(kind), source, casting="unsafe")

    def decode(source: NDArray[Any], target: NDArray[Any]) -> None:
        np.copyto(target, source.view(kind), casting="unsafe")

    return Halves(name, encode, decode)

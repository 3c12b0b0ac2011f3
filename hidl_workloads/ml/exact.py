"""Sums of floating-point numbers that are the same bit for bit in any order, on any number of ranks.

Every number is rounded to a grid so coarse that sums of ``count`` of them fit into float64's 53 bits without any
rounding, and what that cut off is rounded to a second, finer grid, on which sums are exact too. So addition is
associative, whatever MPI, BLAS or a GPU's atomics do. What is lost is below ``count * largest * 2**-(102 - 2b)``,
``2**b >= count``: nothing that a plain sum would have kept. (Demmel and Nguyen 2013, Fast reproducible floating-point
summation, ARITH 21; Rump, Ogita and Oishi 2008, SIAM J. Sci. Comput. 31, 189-224.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hidl_workloads.ml.streams import Array

if TYPE_CHECKING:
    from mpi4py import MPI

    from hidl_workloads.ml.devices import Device

_BITS = 51  # of float64's 53 bits, one is for the sign and one for rounding up
_LEAST_EXPONENT = -1074


class Grid:
    """Splits numbers of at most ``largest`` in size, so that sums of up to ``count`` of them are exact."""

    def __init__(self, largest: float, count: int) -> None:
        _, exponent = math.frexp(largest)
        headroom = max(count, 1).bit_length()
        coarse = max(exponent + headroom - _BITS, _LEAST_EXPONENT)
        fine = max(coarse - 1 + headroom - _BITS, _LEAST_EXPONENT)
        # Adding and then subtracting this rounds to a multiple of 2**exponent.
        self._coarse, self._fine = (1.5 * 2.0**52 * 2.0**exponent for exponent in (coarse, fine))

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return the two parts of ``values``, of its shape; their sum is the value but for what is lost."""
        high = values + self._coarse
        high -= self._coarse
        low = values - high
        low += self._fine
        low -= self._fine
        return high, low


def total(communicator: MPI.Comm, device: Device, values: Array, count: int) -> Array:
    """Sum ``values`` (rows, ...) over their rows, of which all ranks together have ``count``: an array (...)."""
    grid = Grid(device.largest(communicator, values), count)
    parts = device.xp.stack([part.sum(axis=0) for part in grid.split(values)])
    device.allreduce(communicator, parts)
    return parts[0] + parts[1]

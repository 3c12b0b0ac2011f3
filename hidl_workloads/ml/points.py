"""The points of a clustering: from a file or made up, each rank its own, in blocks that do not depend on the ranks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import exact, streams
from hidl_workloads.ml.blocks import aligned_share, split
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.streams import Array, Stream
from hidl_workloads.refusal import agree

#: The squares of numbers in this range, and of their differences, can be summed in float64.
_FINE = (1e-100, 1e100)


@dataclass(frozen=True)
class Points:
    """The rows that this rank has of ``total`` points, less their common mean: float64 (rows, columns) on the device.

    Distances do not change by that, and computed as ``|x|**2 - 2*x*c + |c|**2`` they lose no digits to a cloud that
    lies far from the origin. All ranks know ``mean`` (columns,), the mean of the columns' variances, and the largest
    coordinate in size.

    Numbers whose squares float64 could not hold are multiplied by a power of two, which changes no digit: the data by
    ``2**-raised`` before the mean is taken, what is left by ``2**-spread`` after it. Both are 0 for ordinary data.
    """

    communicator: MPI.Comm
    device: Device
    values: Array
    rows: range
    total: int
    block: int
    mean: Array
    variance: float
    largest: float
    raised: int
    spread: int

    @property
    def columns(self) -> int:
        """The dimension of the space."""
        return int(self.values.shape[1])

    def blocks(self) -> Iterator[tuple[range, slice, Array]]:
        """This rank's blocks: their rows among all, their place among its own, and their coordinates."""
        for rows in split(self.rows, self.block):
            place = slice(rows.start - self.rows.start, rows.stop - self.rows.start)
            yield rows, place, self.values[place]

    def row(self, index: int) -> Array:
        """Return one point on every rank: (columns,). Collective."""
        return self.pick(np.array([index]))[0]

    def pick(self, indices: Array) -> Array:
        """Some points, on every rank: (indices, columns). Collective; ``indices`` are the host's."""
        picked = self.device.xp.zeros((len(indices), self.columns))
        own = np.flatnonzero((indices >= self.rows.start) & (indices < self.rows.stop))
        picked[self.device.array(own)] = self.values[self.device.array(indices[own] - self.rows.start)]
        self.device.allreduce(self.communicator, picked)  # all other ranks have zeros there, so the sum is exact
        return picked

    def inside(self, coordinates: Array) -> Array:
        """Points of the data (n, columns), less the mean and multiplied as ``values`` are."""
        xp = self.device.xp
        return xp.ldexp(xp.ldexp(coordinates, -self.raised) - self.mean, -self.spread)

    def outside(self, values: Array) -> Array:
        """The inverse of ``inside``."""
        xp = self.device.xp
        return xp.ldexp(xp.ldexp(values, self.spread) + self.mean, self.raised)

    def square(self, value: float) -> float:
        """A squared length of ``values`` as one of the data; the largest float64 where it is beyond that."""
        try:
            return math.ldexp(value, 2 * (self.raised + self.spread))
        except OverflowError:
            return sys.float_info.max

    def gathered(self, of_rows: Array) -> Array:
        """Put together one value of each row, which every rank has for its own: on the host of rank 0, else empty."""
        parts = self.communicator.gather(self.device.host(of_rows))
        return np.concatenate(parts) if parts else np.empty(0)


def load(
    communicator: MPI.Comm,
    device: Device,
    *,
    data: str,
    points: int,
    columns: int,
    centers: int,
    spread: float,
    seed: int,
    block: int,
) -> Points:
    """Read the file ``data`` (.npy, one row for each point), or make up ``points`` blobs where it is empty.

    The file is mapped, so each rank reads its own rows alone. Raises ``Refused`` where there is no such file or it is
    no matrix of numbers, and where a coordinate is NaN or infinite.
    """
    if not data:
        rows = aligned_share(points, block, communicator.size, communicator.rank)
        own, _ = streams.blobs(seed, Stream.POINTS, rows, columns=columns, centers=centers, spread=spread)
        return _centred(communicator, device, own, rows, total=points, block=block)
    mapped, fault = read_matrix("data", data)
    agree(communicator, fault)
    rows = aligned_share(mapped.shape[0], block, communicator.size, communicator.rank)
    own = np.array(mapped[rows.start : rows.stop], dtype=np.float64, order="C")
    agree(communicator, _strange(own, rows.start))
    return _centred(communicator, device, own, rows, total=mapped.shape[0], block=block)


def read_matrix(name: str, path: str) -> tuple[Any, str | None]:
    """The matrix in the file that the parameter ``name`` names, not yet read, or what is wrong with it."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        return None, f"{name}={path} cannot be read: {error}"
    if not isinstance(mapped, np.ndarray) or mapped.ndim != 2 or mapped.dtype.kind not in "fiu" or not mapped.size:
        found = f"{mapped.dtype} {mapped.shape}" if isinstance(mapped, np.ndarray) else "several arrays"
        return None, f"{name}={path} contains {found}, not a matrix of real numbers with a row for each point"
    return mapped, None


def _strange(values: Array, first: int) -> str | None:
    """Say which points hold something that no distance can be computed from; None where there is none."""
    fine = np.isfinite(values).all(axis=1)
    if fine.all():
        return None
    wrong = np.flatnonzero(~fine)
    return (
        f"{len(wrong)} of this rank's {len(values)} points contain NaN or infinity, the first one in row "
        f"{first + int(wrong[0])}: remove them, because distances to them are undefined"
    )


def _centred(communicator: MPI.Comm, device: Device, own: Array, rows: range, *, total: int, block: int) -> Points:
    values = device.array(own)
    raised = _exponent(device.largest(communicator, values))
    values = device.xp.ldexp(values, -raised)
    mean = exact.total(communicator, device, values, total) / total
    values -= mean
    spread = _exponent(device.largest(communicator, values))
    values = device.xp.ldexp(values, -spread)
    variance = exact.total(communicator, device, values**2, total) / total
    return Points(
        communicator,
        device,
        values,
        rows,
        total,
        block,
        mean,
        float(variance.mean()),
        device.largest(communicator, values),
        raised,
        spread,
    )


def _exponent(largest: float) -> int:
    """The power of two by which numbers up to ``largest`` are to be divided; 0 where they can well be squared."""
    return 0 if largest == 0 or _FINE[0] <= largest <= _FINE[1] else math.frexp(largest)[1]

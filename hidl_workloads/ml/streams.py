"""Random data from counter-based streams: any rank generates any part of them, and the parts fit together.

The generator is Philox (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, SC'11): its state is a key,
here the seed and what the numbers are for, and a counter, here the place in the data. Data are made by NumPy on the
host, for GPUs too, so they are the same everywhere.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from hidl_workloads.ml.blocks import split

Array = Any
"""An array of NumPy or CuPy."""

_ROWS = 1024  # number of rows per counter
_TILE = 256  # number of rows and columns per counter


class Stream(IntEnum):
    """Purposes of random numbers; streams of one seed are independent of each other."""

    CENTERS = 1
    POINTS = 2
    QUERIES = 3
    START = 4
    SAMPLE = 5
    LEFT = 6
    RIGHT = 7
    PROBE = 8
    FEATURES = 9
    NOISE = 10
    COEFFICIENTS = 11
    BASIS = 12


def generator(seed: int, stream: Stream, first: int = 0, second: int = 0) -> np.random.Generator:
    """The generator at place (``first``, ``second``) of a stream; it has 2**128 numbers before the next place."""
    return np.random.Generator(np.random.Philox(key=[seed, int(stream)], counter=[0, 0, first, second]))


def blobs(seed: int, stream: Stream, rows: range, *, columns: int, centers: int, spread: float) -> tuple[Array, Array]:
    """Return ``rows`` of a mixture of Gaussians, float64 (rows, columns), and each one's component, int64 (rows,).

    The ``centers`` are uniform in [-10, 10) in each column and the same for all streams of a seed; ``spread`` is the
    standard deviation around them.
    """
    middle = generator(seed, Stream.CENTERS).uniform(-10, 10, (centers, columns))
    points, labels = np.empty((len(rows), columns)), np.empty(len(rows), dtype=np.int64)
    for part in split(rows, _ROWS):
        random = generator(seed, stream, part.start // _ROWS)
        cut = slice(part.start % _ROWS, part.start % _ROWS + len(part))
        to = slice(part.start - rows.start, part.stop - rows.start)
        labels[to] = random.integers(0, centers, _ROWS)[cut]
        points[to] = middle[labels[to]] + spread * random.standard_normal((_ROWS, columns))[cut]
    return points, labels


def normal(seed: int, stream: Stream, rows: range, columns: range) -> Array:
    """Return a rectangle of a matrix of standard normal numbers: float64 (rows, columns)."""
    result = np.empty((len(rows), len(columns)))
    for down in split(rows, _TILE):
        for across in split(columns, _TILE):
            tile = generator(seed, stream, down.start // _TILE, across.start // _TILE).standard_normal((_TILE, _TILE))
            top, left = down.start % _TILE, across.start % _TILE
            result[
                down.start - rows.start : down.stop - rows.start,
                across.start - columns.start : across.stop - columns.start,
            ] = tile[top : top + len(down), left : left + len(across)]
    return result

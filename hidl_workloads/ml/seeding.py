"""k-means++ (Arthur and Vassilvitskii 2007, k-means++: the advantages of careful seeding, SODA), over MPI.

The next center is a point drawn with a probability in proportion to its squared distance from the centers so far. As
a race: each point has an exponentially distributed time, divided by that distance; the first to arrive is drawn. So
no prefix sums are needed, and with random streams that belong to the points, neither ranks nor order have a say.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml import streams
from hidl_workloads.ml.points import Points
from hidl_workloads.ml.streams import Array, Stream

_NO_ROW = np.iinfo(np.int64).max


def start(points: Points, clusters: int, seed: int) -> Array:
    """Return ``clusters`` of the points as centers: (clusters, columns). Collective, the same on every rank.

    With fewer distinct points than centers, some centers are equal.
    """
    xp = points.device.xp
    centers = xp.empty((clusters, points.columns))
    distances = xp.full(len(points.rows), xp.inf)
    row = int(streams.generator(seed, Stream.START).integers(points.total))
    for number in range(clusters):
        centers[number] = points.row(row)
        for _, place, values in points.blocks():
            distances[place] = xp.minimum(distances[place], ((values - centers[number]) ** 2).sum(axis=1))
        if number + 1 < clusters:
            row = _race(points, distances, seed, number + 1)
    return centers


def _race(points: Points, distances: Array, seed: int, number: int) -> int:
    """The row of the point that is drawn as center ``number``; ``number`` itself where all distances are 0."""
    first = (np.inf, _NO_ROW)
    for rows, place, _ in points.blocks():
        random = streams.generator(seed, Stream.START, rows.start // points.block, number)
        of_block = points.device.host(distances[place])
        arrivals = np.full(len(rows), np.inf)
        np.divide(random.standard_exponential(len(rows)), of_block, out=arrivals, where=of_block > 0)
        fastest = int(arrivals.argmin())
        first = min(first, (float(arrivals[fastest]), rows.start + fastest))
    earliest = points.communicator.allreduce(first[0], MPI.MIN)
    if earliest == np.inf:
        return number
    return int(points.communicator.allreduce(first[1] if first[0] == earliest else _NO_ROW, MPI.MIN))

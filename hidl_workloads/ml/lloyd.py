"""Lloyd's algorithm over MPI: assign the own points, sum coordinates and counts over all ranks, move the centers.

Sums are exact (see ``exact``), and blocks of points do not depend on the number of ranks: so the result is the same
bit for bit on any number of ranks, with the same NumPy, BLAS threads and kind of processor. When to stop and what
becomes of an empty cluster follow scikit-learn, so that both come to the same from the same start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hidl_workloads.ml import exact
from hidl_workloads.ml.points import Points
from hidl_workloads.ml.streams import Array


@dataclass(frozen=True)
class Fit:
    """``centers`` (clusters, columns) less the points' mean, and this rank's ``labels`` (rows,).

    ``inertia`` is the sum of the squared distances to the nearest centers; ``settled``: the last iteration changed no
    label.
    """

    centers: Array
    labels: Array
    inertia: float
    iterations: int
    settled: bool


@dataclass(frozen=True)
class Iterate:
    """The state of a fit after some iterations, the same on all ranks; it determines the rest of the fit.

    Attributes:
        centers: (clusters, columns), less the points' mean.
        before: The centers that the last iteration assigned the points to; None before the first.
        iterations: Number of completed iterations.
        settled: The last iteration changed no label.
        ended: There is no further iteration.
    """

    centers: Array
    before: Array | None = None
    iterations: int = 0
    settled: bool = False
    ended: bool = False


def fit(
    points: Points,
    begun: Iterate,
    *,
    max_iterations: int,
    tolerance: float,
    after: Callable[[Iterate], None] = lambda _: None,
) -> Fit:
    """Iterate until no label changes, the centers hardly move, or all iterations are done.

    The last labels always belong to the last centers.

    Args:
        points: This rank's points.
        begun: The initial centers, or the state of a fit that is continued.
        max_iterations: Largest number of iterations.
        tolerance: A fit ends when the squared shifts of the centers add up to less than this share of the variance.
        after: Is called with the state after each iteration.
    """
    xp = points.device.xp
    now = begun
    labels = xp.full(len(points.rows), -1, dtype=xp.int64) if now.before is None else nearest(points, now.before)
    while not now.ended:
        before = labels
        labels = nearest(points, now.centers)
        sums = Sums(points, labels, len(now.centers), changed=int((labels != before).sum()))
        sums.relocate_empty(now.centers)
        moved = sums.means()
        shift = float(((moved - now.centers) ** 2).sum())
        iterations, settled = now.iterations + 1, sums.changed == 0
        ended = settled or shift <= tolerance * points.variance or iterations >= max_iterations
        now = Iterate(moved, now.centers, iterations, settled, ended)
        after(now)
    if not now.settled:
        labels = nearest(points, now.centers)
    return Fit(now.centers, labels, inertia(points, now.centers, labels), now.iterations, now.settled)


def nearest(points: Points, centers: Array) -> Array:
    """The number of the nearest center of each of this rank's points, the lowest of equals: int64 (rows,).

    At any time there are only the distances of one block: ``block`` x clusters.
    """
    xp = points.device.xp
    labels = xp.empty(len(points.rows), dtype=xp.int64)
    squares, twice = (centers**2).sum(axis=1), -2.0 * centers.T
    for _, place, values in points.blocks():
        distances = values @ twice  # without |x|**2, which is the same for all centers
        distances += squares
        labels[place] = distances.argmin(axis=1)
    return labels


def squared_distances(points: Points, centers: Array, labels: Array) -> Array:
    """The squared distance of each of this rank's points from its own center, by differences: (rows,)."""
    result = points.device.xp.empty(len(points.rows))
    for _, place, values in points.blocks():
        result[place] = ((values - centers[labels[place]]) ** 2).sum(axis=1)
    return result


def inertia(points: Points, centers: Array, labels: Array) -> float:
    """The sum of all points' squared distances from their centers."""
    distances = squared_distances(points, centers, labels)
    return float(exact.total(points.communicator, points.device, distances, points.total))


class Sums:
    """The sum and number of the points of each cluster, over all ranks: one allreduce, which counts changes as well."""

    def __init__(self, points: Points, labels: Array, clusters: int, *, changed: int = 0) -> None:
        self._points, self._labels = points, labels
        xp, columns = points.device.xp, points.columns
        self._grid = exact.Grid(points.largest, points.total)
        size = clusters * columns
        message = xp.zeros(2 * size + clusters + 1)
        for _, place, values in points.blocks():
            cells = (labels[place, None] * columns + xp.arange(columns)).ravel()
            for half, part in enumerate(self._grid.split(values)):
                message[half * size : (half + 1) * size] += xp.bincount(cells, part.ravel(), size)
            message[2 * size : -1] += xp.bincount(labels[place], minlength=clusters)
        message[-1] = changed
        points.device.allreduce(points.communicator, message)
        self._parts = message[: 2 * size].reshape(2, clusters, columns)
        self.counts = message[2 * size : -1]
        self.changed = int(message[-1])

    def means(self) -> Array:
        """The clusters' means; that of a cluster without points is the mean of the largest."""
        xp, counts = self._points.device.xp, self.counts
        means = self._parts.sum(axis=0) / xp.maximum(counts, 1)[:, None]
        return xp.where(counts[:, None] > 0, means, means[int(counts.argmax())])

    def relocate_empty(self, centers: Array) -> None:
        """Give each empty cluster one of the points that are farthest from their centers; the lower row of equals.

        Where all points lie on their centers, there is nothing to gain, and nothing is done. Collective.
        """
        device = self._points.device
        empty = np.flatnonzero(device.host(self.counts) == 0)
        if not empty.size:
            return
        for cluster, (distance, row, label) in zip(empty, self._farthest(centers, len(empty)), strict=False):
            if distance == 0:
                return
            for part, of_point in zip(self._parts, self._grid.split(self._points.row(row)), strict=True):
                part[cluster] = of_point
                part[label] -= of_point
            self.counts[cluster] = 1
            self.counts[label] -= 1

    def _farthest(self, centers: Array, number: int) -> list[tuple[float, int, int]]:
        """The ``number`` points of all that are farthest from their centers: distance squared, row, label."""
        points = self._points
        distances = points.device.host(squared_distances(points, centers, self._labels))
        own = np.argsort(-distances, kind="stable")[:number]
        labels = points.device.host(self._labels)[own]
        found = zip(distances[own].tolist(), (own + points.rows.start).tolist(), labels.tolist(), strict=True)
        everyone = [each for of_rank in points.communicator.allgather(list(found)) for each in of_rank]
        return sorted(everyone, key=lambda each: (-each[0], each[1]))[:number]

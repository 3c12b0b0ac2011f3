"""Criteria by which the number of clusters is chosen; higher is better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hidl_workloads.ml import streams
from hidl_workloads.ml.blocks import aligned_share, split
from hidl_workloads.ml.streams import Array, Stream

if TYPE_CHECKING:
    from hidl_workloads.ml.points import Points

_BLOCK = 64  # number of rows of the sample whose distances a rank sums at once


def bic(counts: Array, inertia: float, columns: int) -> float:
    """The Bayesian information criterion of equal spherical Gaussians around the centers (Pelleg and Moore 2000,
    X-means, ICML, section 3.2): ``log-likelihood - parameters/2 * log(points)``.

    ``counts`` (clusters,) are the host's. A clustering without any variance left is as good as one whose variance is
    the smallest number that there is.
    """
    clusters, points = len(counts), float(counts.sum())
    free = max(points - clusters, 1) * columns
    variance = max(inertia / free, np.finfo(float).tiny)
    filled = counts[counts > 0]
    likelihood = float((filled * np.log(filled / points)).sum())
    likelihood -= points * columns / 2 * math.log(2 * math.pi * variance) + free / 2
    parameters = clusters - 1 + clusters * columns + 1
    return likelihood - parameters / 2 * math.log(points)


def sample_rows(total: int, size: int, seed: int) -> Array:
    """Return the rows of a sample of ``size`` of ``total`` points, in order; all rows if there are no more."""
    if total <= size:
        return np.arange(total)
    return np.sort(streams.generator(seed, Stream.SAMPLE).choice(total, size, replace=False))


class Silhouette:
    """The mean silhouette of a sample of points, each with its nearest center.

    A point's is ``(b - a) / max(a, b)``, with a its mean distance to the others of its cluster, and b the least mean
    distance to those of another (Rousseeuw 1987, J. Comput. Appl. Math. 20, 53-65); 0 where it is alone. Only points
    of the sample count. Each rank has the distances of its share of the sample to all of it, computed once.
    """

    def __init__(self, points: Points, rows: Array) -> None:
        self._points, self._sample = points, points.pick(rows)
        own = aligned_share(len(rows), _BLOCK, points.communicator.size, points.communicator.rank)
        self._parts = [(slice(part.start, part.stop), self._distances(part)) for part in split(own, _BLOCK)]

    def _distances(self, rows: range) -> Array:
        differences = self._sample[rows.start : rows.stop, None, :] - self._sample[None, :, :]
        return self._points.device.xp.sqrt((differences**2).sum(axis=2))

    def of(self, centers: Array) -> float:
        """The clustering's figure, the same on all ranks, for any number of them. Collective.

        A sample that lies in one cluster has none: the answer is -1, the worst.
        """
        xp = self._points.device.xp
        labels = ((self._sample[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
        member = (labels[:, None] == xp.arange(len(centers))[None, :]).astype(float)
        counts = member.sum(axis=0)
        if int((counts > 0).sum()) < 2:
            return -1.0
        widths = xp.zeros(len(self._sample))
        for rows, distances in self._parts:
            widths[rows] = _widths(xp, distances @ member, counts, labels[rows])
        # For each point, one rank has the value and the others have 0.
        self._points.device.allreduce(self._points.communicator, widths)
        return float(widths.mean())


def _widths(xp: Any, sums: Array, counts: Array, labels: Array) -> Array:
    """The silhouettes of points with ``labels``, from the ``sums`` of their distances to each cluster: (rows,)."""
    each = xp.arange(len(labels))
    others = counts[labels] - 1
    inside = sums[each, labels] / xp.maximum(others, 1)
    means = xp.where(counts > 0, sums / xp.maximum(counts, 1), xp.inf)
    means[each, labels] = xp.inf
    outside = means.min(axis=1)
    most = xp.maximum(inside, outside)
    return xp.where((others > 0) & (most > 0), (outside - inside) / xp.where(most > 0, most, 1), 0.0)

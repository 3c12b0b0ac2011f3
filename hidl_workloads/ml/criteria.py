"""How good a clustering is, to choose the number of clusters by: the higher, the better."""

from __future__ import annotations

import math

import numpy as np

from hidl_workloads.ml import streams
from hidl_workloads.ml.blocks import share
from hidl_workloads.ml.points import Points
from hidl_workloads.ml.streams import Array, Stream


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
    """Which rows a sample of ``size`` of ``total`` points consists of, in order: all where there are no more."""
    if total <= size:
        return np.arange(total)
    return np.sort(streams.generator(seed, Stream.SAMPLE).choice(total, size, replace=False))


def silhouette(points: Points, sample: Array, centers: Array) -> float:
    """The mean silhouette of a sample of points, (rows, columns), the same on all ranks, each with its nearest center.

    A point's is ``(b - a) / max(a, b)``, with a its mean distance to the others of its cluster, and b the least mean
    distance to those of another (Rousseeuw 1987, J. Comput. Appl. Math. 20, 53-65); 0 where it is alone. Only points
    of the sample count. Collective: each rank computes its share of the sample. A sample in one cluster has no
    silhouette: the answer is -1, the worst.
    """
    xp, communicator = points.device.xp, points.communicator
    labels = ((sample[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    member = (labels[:, None] == xp.arange(len(centers))[None, :]).astype(float)
    counts = member.sum(axis=0)
    if int((counts > 0).sum()) < 2:
        return -1.0
    own = share(len(sample), communicator.size, communicator.rank)
    widths = xp.zeros(len(sample))
    for row in own:
        distances = xp.sqrt(((sample - sample[row]) ** 2).sum(axis=1))
        sums = distances @ member
        label = labels[row]
        if counts[label] > 1:
            inside = sums[label] / (counts[label] - 1)
            means = xp.where(counts > 0, sums / xp.maximum(counts, 1), xp.inf)
            means[label] = xp.inf
            outside, most = means.min(), xp.maximum(inside, means.min())
            widths[row] = (outside - inside) / most if most > 0 else 0.0
    points.device.allreduce(communicator, widths)  # of each point, one rank has the figure, the others 0
    return float(widths.mean())

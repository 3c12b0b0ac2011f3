"""k-means clustering, each rank its own points: ``python -m hidl_workloads.ml.kmeans --points=200000 --clusters=16``.

The algorithm is the one of the tutorial at the MVAPICH User Group meeting 2022: assign each point to its nearest
center, allreduce the sums and counts, move the centers, until nothing changes.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from hidl_workloads.metrics import Metric
from hidl_workloads.ml import lloyd, program, seeding
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.points import Points, load, read_matrix
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array
from hidl_workloads.parameters import Clustering
from hidl_workloads.parameters import Kmeans as Parameters
from hidl_workloads.refusal import Refused, agree


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Load the points, choose the start, fit as often as there are steps, and check the clustering."""
    points = points_of(communicator, device, parameters, ranks=communicator.size)
    if parameters.clusters > points.total:
        raise Refused(f"{parameters.clusters} clusters of {points.total} point(s): choose no more clusters than points")
    communicator.Barrier()
    begun = time.perf_counter()
    start = (
        _given(points, parameters) if parameters.start else seeding.start(points, parameters.clusters, parameters.seed)
    )
    device.synchronize()
    seeding_time = communicator.allreduce(time.perf_counter() - begun, MPI.MAX)
    fit, seconds = timed(
        communicator,
        device,
        parameters,
        lambda: lloyd.fit(points, start, max_iterations=parameters.max_iterations, tolerance=parameters.tolerance),
    )
    counts = check(points, fit)
    centers, inertia = points.outside(fit.centers), points.square(fit.inertia)
    labels = (
        points.gathered(fit.labels) if parameters.result else np.empty(0)
    )  # a single rank may not have room for all
    size = f"{points.total:,} points in {points.columns} dimensions, {parameters.clusters} clusters"
    return ProgramReport(
        metrics=[
            *program.time_and_rate("fit_time", seconds, points.total * fit.iterations, "point_rate", "points/s"),
            one("seeding_time", seeding_time, "s"),
            one("inertia", inertia, "squared length"),
            one("iterations", fit.iterations, "iterations"),
            Metric("smallest_cluster", float(counts.min()), "points", [float(count) for count in counts]),
        ],
        summary=f"{size}: inertia {inertia:.6g} after {fit.iterations} iterations, {np.median(seconds):.4g} s\n"
        f"{points.total * fit.iterations / np.median(seconds):,.0f} points/s (assigned and summed in each iteration)",
        checksum=program.checksum(device, centers),
        arrays={
            "start": device.host(points.outside(start)),
            "centers": device.host(centers),
            "labels": labels,
            "inertia": inertia,
            "iterations": fit.iterations,
        },
    )


def points_of(communicator: MPI.Comm, device: Device, parameters: Clustering, *, ranks: int) -> Points:
    """This rank's points of those that ``communicator`` has; ``per_rank``: so many for each of ``ranks``."""
    return load(
        communicator,
        device,
        data=parameters.data,
        points=parameters.points * (ranks if parameters.per_rank else 1),
        columns=parameters.columns,
        centers=parameters.centers,
        spread=parameters.spread,
        seed=parameters.seed,
        block=parameters.block,
    )


def _given(points: Points, parameters: Parameters) -> Array:
    """The centers in the file ``start``, like the points' values; ``Refused`` on all ranks where they do not fit."""
    given, fault = read_matrix("start", parameters.start)
    shape = (parameters.clusters, points.columns)
    if fault is None and given.shape != shape:
        fault = f"start={parameters.start} has {given.shape[0]} x {given.shape[1]} numbers, not {shape[0]} x {shape[1]}"
    elif fault is None and not np.isfinite(given).all():
        fault = f"start={parameters.start} contains NaN or infinity"
    agree(points.communicator, fault)
    return points.inside(points.device.array(np.array(given, dtype=np.float64)))


def check(points: Points, fit: lloyd.Fit) -> Array:
    """Check a clustering, and return the number of points of each cluster, on the host.

    Every point is in one cluster; the inertia is what the law of total variance leaves for it, which needs the
    clusters' means and sizes and no distance of any point from a center; and of this rank's first points none has a
    nearer center, by differences. Raises ``Refused`` on all ranks where one of these does not hold.
    """
    xp, communicator = points.device.xp, points.communicator
    sums = lloyd.Sums(points, fit.labels, len(fit.centers))
    verify(communicator, "the number of points in no cluster", abs(points.total - float(sums.counts.sum())), 0)
    counts, means = sums.counts[:, None], sums.means()
    whole = points.variance * points.columns * points.total
    within = whole - float((counts * means**2).sum()) + float((counts * (means - fit.centers) ** 2).sum())
    error = abs(fit.inertia - within) / whole if whole else abs(fit.inertia)
    verify(communicator, "the inertia's deviation from the law of total variance", error, 1e-9)
    sample = points.values[: points.block]
    distances = xp.stack([((sample - center) ** 2).sum(axis=1) for center in fit.centers], axis=1)
    nearest = distances.min(axis=1)
    own = distances[xp.arange(len(sample)), fit.labels[: len(sample)]]
    scale = float(nearest.max()) + points.variance if len(sample) else 1.0
    excess = float((own - nearest).max()) / scale if len(sample) and scale else 0.0
    verify(communicator, "a point's distance from its own center, less that from the nearest", excess, 1e-9)
    return points.device.host(sums.counts)


if __name__ == "__main__":
    main("kmeans", Parameters, run)

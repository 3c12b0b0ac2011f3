"""k-means for many numbers of clusters and many starts; a criterion selects the best.

``python -m hidl_workloads.ml.kmeans_sweep --least_clusters=2 --most_clusters=20 --starts=3``. The fits are dealt to
groups of ranks; each group has all points, distributed over its ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hidl_workloads.metrics import Metric
from hidl_workloads.ml import criteria, kmeans, lloyd, program, schedule, seeding
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.points import Points
from hidl_workloads.ml.program import ProgramReport, main, one, timed, verify
from hidl_workloads.ml.streams import Array
from hidl_workloads.parameters import KmeansSweep as Parameters
from hidl_workloads.refusal import Refused


@dataclass(frozen=True)
class FitTask:
    """One fit: so many clusters, from the start that this seed gives."""

    clusters: int
    seed: int


Table = Array
"""One row for each task: score, inertia, iterations, seconds."""


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Make the points known to each group, do all fits as often as there are steps, and check the best."""
    if parameters.least_clusters > parameters.most_clusters:
        raise Refused(
            f"least_clusters={parameters.least_clusters} is more than most_clusters={parameters.most_clusters}"
        )
    everywhere = kmeans.points_of(communicator, device, parameters, ranks=communicator.size)
    if parameters.most_clusters > everywhere.total:
        raise Refused(f"{parameters.most_clusters} clusters of {everywhere.total} point(s): lower most_clusters")
    tasks = [
        FitTask(clusters, parameters.seed + start)
        for clusters in range(parameters.least_clusters, parameters.most_clusters + 1)
        for start in range(parameters.starts)
    ]
    group, groups = schedule.group_of(communicator.rank, communicator.size, parameters.group)
    plan = schedule.deal([task.clusters for task in tasks], groups)
    ranks_of_group = communicator.Split(group)
    points = kmeans.points_of(ranks_of_group, device, parameters, ranks=communicator.size)
    table, seconds = timed(
        communicator, device, parameters, lambda: sweep(communicator, points, tasks, plan[group], parameters)
    )
    ranks_of_group.Free()
    best = int(table[:, 0].argmax())
    fit = _fit(everywhere, tasks[best], parameters)
    kmeans.check(everywhere, fit)
    verify(
        communicator,
        "the difference between the best fit's inertia and that of the same fit by all ranks",
        abs(everywhere.square(fit.inertia) - table[best, 1]),
        0,
    )
    busy = [float(table[of_group, 3].sum()) for of_group in plan]
    best_of = {
        task.clusters: max(table[i, 0] for i, t in enumerate(tasks) if t.clusters == task.clusters) for task in tasks
    }
    return ProgramReport(
        metrics=[
            *program.time_and_rate("sweep_time", seconds, len(tasks), "task_rate", "fits/s"),
            one("best_clusters", tasks[best].clusters, "clusters"),
            Metric("best_score", float(table[best, 0]), parameters.criterion, list(map(float, best_of.values()))),
            one("imbalance", max(busy) / (sum(busy) / groups), "busiest/mean"),
        ],
        summary=f"{len(tasks)} fits in {groups} group(s) of ranks: {tasks[best].clusters} clusters are best, "
        f"{parameters.criterion} {table[best, 0]:.6g}, {np.median(seconds):.4g} s",
        checksum=program.checksum(device, table[:, :3], fit.centers),
        arrays={
            "clusters": np.array([task.clusters for task in tasks]),
            "seeds": np.array([task.seed for task in tasks]),
            "table": table,
            "centers": device.host(everywhere.outside(fit.centers)),
        },
    )


def sweep(
    communicator: MPI.Comm, points: Points, tasks: list[FitTask], own: list[int], parameters: Parameters
) -> Table:
    """Do this group's tasks and put all groups' results together: the table, the same on every rank. Collective."""
    score = _criterion(points, parameters)
    table = np.zeros((len(tasks), 4))
    for task in own:
        begun = time.perf_counter()
        fit = _fit(points, tasks[task], parameters)
        scored = score(fit)
        if points.communicator.rank == 0:  # one rank reports for its group
            table[task] = scored, points.square(fit.inertia), fit.iterations, time.perf_counter() - begun
    communicator.Allreduce(MPI.IN_PLACE, table, MPI.SUM)
    return table


def _criterion(points: Points, parameters: Parameters) -> Callable[[lloyd.Fit], float]:
    """Return the function that rates a fit; its call is collective in the group."""
    if parameters.criterion == "silhouette":
        rows = criteria.sample_rows(points.total, parameters.sample, parameters.seed)
        silhouette = criteria.Silhouette(points, rows)
        return lambda fit: silhouette.of(fit.centers)

    def bic(fit: lloyd.Fit) -> float:
        counts = lloyd.Sums(points, fit.labels, len(fit.centers)).counts
        scored = criteria.bic(points.device.host(counts), fit.inertia, points.columns)
        return scored - points.total * points.columns * (points.raised + points.spread) * math.log(2)

    return bic


def _fit(points: Points, task: FitTask, parameters: Parameters) -> lloyd.Fit:
    begun = lloyd.Iterate(seeding.start(points, task.clusters, task.seed))
    return lloyd.fit(points, begun, max_iterations=parameters.max_iterations, tolerance=parameters.tolerance)


if __name__ == "__main__":
    main("kmeans-sweep", Parameters, run)

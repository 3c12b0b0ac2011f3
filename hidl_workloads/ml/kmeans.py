"""k-means clustering, each rank its own points: ``python -m hidl_workloads.ml.kmeans --points=200000 --clusters=16``.

The algorithm is the one of the tutorial at the MVAPICH User Group meeting 2022: assign each point to its nearest
center, allreduce the sums and counts, move the centers, until nothing changes.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import BinaryIO

import numpy as np
from mpi4py import MPI

from hidl_workloads import phases, stop
from hidl_workloads.checkpoint import Checkpoint, Checkpoints, Snapshot, directory_of_checkpoints
from hidl_workloads.metrics import Metric
from hidl_workloads.ml import lloyd, program, seeding
from hidl_workloads.ml.devices import Device
from hidl_workloads.ml.points import Points, load, read_matrix
from hidl_workloads.ml.program import ProgramReport, main, one, verify
from hidl_workloads.ml.streams import Array
from hidl_workloads.parameters import Clustering
from hidl_workloads.parameters import Kmeans as Parameters
from hidl_workloads.refusal import Refused, agree

NAME = "kmeans"

#: Parameters that may change between two jobs of a run.
_ANY_VALUE = ("result", "per_rank")


def run(communicator: MPI.Comm, device: Device, parameters: Parameters) -> ProgramReport:
    """Load the points, choose the start, fit as often as there are steps, and check the clustering."""
    if directory_of_checkpoints() is not None:
        stop.listen()  # the signal may come while the points are read
    points = points_of(communicator, device, parameters, ranks=communicator.size)
    if parameters.clusters > points.total:
        raise Refused(f"{parameters.clusters} clusters of {points.total} point(s): choose no more clusters than points")
    fits = Fits(points, parameters)
    fit = fits.run()
    start, seconds = fits.start, fits.timed
    counts = check(points, fit)
    centers, inertia = points.outside(fit.centers), points.square(fit.inertia)
    labels = (
        points.gathered(fit.labels) if parameters.result else np.empty(0)
    )  # a single rank may not have room for all
    size = f"{points.total:,} points in {points.columns} dimensions, {parameters.clusters} clusters"
    report = ProgramReport(
        metrics=[
            *program.time_and_rate("fit_time", seconds, points.total * fit.iterations, "point_rate", "points/s"),
            one("seeding_time", fits.seeding_time, "s"),
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
    fits.finish()
    return report


class Fits:
    """The fits of a run, from the first one or from the newest checkpoint; collective.

    A checkpoint has the centers after some iterations of a fit. They determine the labels, so that no rank has a state
    of its own, and any number of ranks can continue. Times are those on this number of ranks: a job that has another
    number than the one before chooses the start again, and does one more fit if none is left.

    Attributes:
        start: The initial centers.
        seconds: The seconds of each completed fit on the slowest rank, without the time that checkpoints took; None if
            a part of the fit ran on another number of ranks.
        seeding_time: The seconds that choosing the start took.
    """

    def __init__(self, points: Points, parameters: Parameters) -> None:
        self._points, self._parameters = points, parameters
        self._communicator, self._device = points.communicator, points.device
        self._total = parameters.warmup + parameters.steps
        self.seconds: list[float | None] = []
        self._spent: float | None = 0.0  # seconds of the current fit, without those that are not yet counted
        self._step = 0  # iterations of all fits
        self._checkpoints = self._open()
        # A checkpoint of another number of steps would have another identity.
        found = self._checkpoints.newest(sys.maxsize) if self._checkpoints is not None else None
        if found is None:
            self.start, self.seeding_time = self._seed()
            self._begun = lloyd.Iterate(self.start)
        else:
            self._restore(found)

    def run(self) -> lloyd.Fit:
        """Do the fits that are left, all ranks from the same moment on; return the last one."""
        while len(self.seconds) < self._planned:
            self._communicator.Barrier()
            is_warmup = len(self.seconds) < self._parameters.warmup
            with phases.warmup() if is_warmup else phases.phase(phases.STEP):
                self._since = time.perf_counter()
                fit = lloyd.fit(
                    self._points,
                    self._begun,
                    max_iterations=self._parameters.max_iterations,
                    tolerance=self._parameters.tolerance,
                    after=self._after_iteration,
                )
                self._device.synchronize()
                self._count_time()
            self.seconds.append(self._slowest())
            self._spent, self._begun = 0.0, lloyd.Iterate(self.start)
        return fit

    @property
    def timed(self) -> list[float]:
        """The seconds of the fits that count, or of all if none does."""
        counted = [each for each in self.seconds[self._parameters.warmup :] if each is not None]
        return counted or [each for each in self.seconds if each is not None]

    @property
    def _planned(self) -> int:
        """The number of fits, with another one if all so far ran on another number of ranks."""
        return max(self._total, len(self.seconds) + (not self.timed))

    def finish(self) -> None:
        """Give the checkpoint directory free for other runs."""
        if self._checkpoints is not None:
            self._checkpoints.finish()

    def _open(self) -> Checkpoints | None:
        directory = directory_of_checkpoints()
        if directory is None:
            return None
        given = asdict(self._parameters)
        return Checkpoints(
            self._communicator,
            directory,
            identity={
                "program": NAME,
                **{name: value for name, value in given.items() if name not in (*_ANY_VALUE, "gpu_buffers")},
                "points": self._points.total,
            },
            versions={**self._device.versions, "device": self._device.title, "gpu_buffers": given["gpu_buffers"]},
            is_exact_on_any_ranks=True,
        )

    def _seed(self) -> tuple[Array, float]:
        self._communicator.Barrier()
        begun = time.perf_counter()
        points, parameters = self._points, self._parameters
        if parameters.start:
            start = _given(points, parameters)
        else:
            start = seeding.start(points, parameters.clusters, parameters.seed)
        self._device.synchronize()
        return start, float(self._communicator.allreduce(time.perf_counter() - begun, MPI.MAX))

    def _after_iteration(self, now: lloyd.Iterate) -> None:
        """Save if it is time to; end all ranks if a stop was requested."""
        self._step += 1
        if self._checkpoints is None:
            return
        self._count_time()
        is_timed = self._spent is not None or bool(self.timed)
        last = now.ended and is_timed and len(self.seconds) == self._planned - 1
        if self._checkpoints.after_step(self._step, lambda: self._snapshot(now), last=last):
            progress = one("progress", self._step, "iterations")
            program.report(self._communicator, self._device, NAME, self._parameters, [progress])
            fit = f"fit {len(self.seconds) + 1} of {self._planned}"
            stop.exit_stopped(self._communicator, f"stopped after iteration {now.iterations} of {fit}, to be continued")
        self._since = time.perf_counter()

    def _snapshot(self, now: lloyd.Iterate) -> Snapshot:
        arrays = {"start": self.start, "centers": now.centers, "before": now.before}

        def write(file: BinaryIO) -> None:
            np.savez(file, **{name: self._device.host(array) for name, array in arrays.items()})

        document = {
            "seconds": self.seconds,
            "spent": self._slowest(),
            "seeding_time": self.seeding_time,
            "iterations": now.iterations,
            "settled": now.settled,
            "ended": now.ended,
        }
        return Snapshot(shared=write, own=lambda file: None, document=document)

    def _restore(self, found: Checkpoint) -> None:
        document = found.document
        with np.load(found.shared, allow_pickle=False) as arrays:
            self.start, centers, before = (self._device.array(arrays[name]) for name in ("start", "centers", "before"))
        self._begun = lloyd.Iterate(
            centers, before, document["iterations"], settled=document["settled"], ended=document["ended"]
        )
        self._step, self.seconds, self._spent = found.step, list(document["seconds"]), document["spent"]
        self.seeding_time = document["seeding_time"]
        if found.ranks != self._communicator.size:
            self.seconds, self._spent = [None] * len(self.seconds), None
            _, self.seeding_time = self._seed()
        if self._communicator.rank == 0:
            fit = f"fit {len(self.seconds) + 1} of {self._planned}"
            print(f"Continuing after iteration {self._begun.iterations} of {fit}", flush=True)

    def _count_time(self) -> None:
        if self._spent is not None:
            self._spent += time.perf_counter() - self._since

    def _slowest(self) -> float | None:
        return None if self._spent is None else float(self._communicator.allreduce(self._spent, MPI.MAX))


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
    main(NAME, Parameters, run)

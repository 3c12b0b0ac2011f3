"""The training loop: steps, each with its time and its loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from mpi4py import MPI

from hidl_workloads import phases
from hidl_workloads.energy import Meter


def run_steps(
    step: Callable[[], float], count: int, *, done: int = 0, warmup: int = 0, meter: Meter | None = None
) -> Iterator[tuple[float, float]]:
    """Call ``step``, which trains once and returns the loss, until ``count`` steps are done; yield seconds and loss.

    There are no barriers: the ranks keep step by what a step communicates. Raises ``FloatingPointError`` if a loss is
    not finite. ``done`` steps were trained by earlier jobs. The first ``warmup`` steps of this one are marked as such
    for the recorder. ``meter`` measures the energy of the others.
    """
    for number in range(done + 1, count + 1):
        if meter is not None and number - done == warmup + 1:
            meter.start()
        with phases.warmup() if number - done <= warmup else phases.phase(phases.STEP):
            start = time.perf_counter()
            loss = step()
            seconds = time.perf_counter() - start
        if meter is not None and number == count:
            meter.stop()
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} in step {number}: choose a smaller learning_rate")
        yield seconds, loss


class StepTimes:
    """The seconds of all steps of a training, in any number of jobs; the first steps of each job are its warm-up."""

    def __init__(self, communicator: MPI.Comm, warmup: int, before: Sequence[tuple[float, bool]] = ()) -> None:
        """Begin a job.

        Args:
            communicator: All ranks.
            warmup: Number of steps that do not count in this job.
            before: ``every`` of the earlier jobs.
        """
        self._communicator, self._warmup = communicator, warmup
        self.every = [(seconds, counts) for seconds, counts in before]
        self._now: list[float] = []

    def add(self, seconds: float) -> None:
        """Add a step of this rank."""
        self._now.append(seconds)

    def collect(self) -> None:
        """Add the slowest rank's seconds of the steps since the last call to ``every``; collective."""
        if not self._now:
            return
        slowest = np.array(self._now)
        self._communicator.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        self.every += [(each, number >= self._warmup) for number, each in enumerate(slowest.tolist())]
        self._warmup = max(0, self._warmup - len(self._now))
        self._now = []

    @property
    def timed(self) -> list[float]:
        """The steps that count, or all if none does."""
        return [each for each, counts in self.every if counts] or [each for each, _ in self.every]

"""The training loop: steps, each with its time and its loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from hidl_workloads import phases
from hidl_workloads.checkpoint import Checkpoint
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
    """The seconds of the steps of a training, in any number of jobs; the first steps of each job are its warm-up.

    Steps on another number of ranks are dropped when there is one on this number.

    Attributes:
        every: Seconds of each step, and whether it counts.
        items: Number of items that all ranks process in each of these steps.
    """

    def __init__(self, communicator: MPI.Comm, warmup: int, items: int, before: Checkpoint | None = None) -> None:
        """Begin a job.

        Args:
            communicator: All ranks.
            warmup: Number of steps that do not count in this job.
            items: Number of items that all ranks process in each step of this job.
            before: Checkpoint that the job continues; its document has ``state``.
        """
        self._communicator, self._warmup, self._own_items = communicator, warmup, items
        document: Mapping[str, Any] = {} if before is None else before.document
        self._is_comparable = before is None or before.ranks == communicator.size
        self.every = [(seconds, counts) for seconds, counts in document.get("seconds", ())]
        self.items: int = document.get("items", items)
        self._now: list[float] = []

    @property
    def state(self) -> dict[str, Any]:
        """The part of a checkpoint's document that describes the steps."""
        return {"seconds": self.every, "items": self.items}

    def add(self, seconds: float) -> None:
        """Add a step of this rank."""
        self._now.append(seconds)

    def collect(self) -> None:
        """Add the slowest rank's seconds of the steps since the last call to ``every``; collective."""
        if not self._now:
            return
        if not self._is_comparable:
            self.every, self.items, self._is_comparable = [], self._own_items, True
        slowest = np.array(self._now)
        self._communicator.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        self.every += [(each, number >= self._warmup) for number, each in enumerate(slowest.tolist())]
        self._warmup = max(0, self._warmup - len(self._now))
        self._now = []

    @property
    def timed(self) -> list[float]:
        """The steps that count, or all if none does."""
        return [each for each, counts in self.every if counts] or [each for each, _ in self.every]

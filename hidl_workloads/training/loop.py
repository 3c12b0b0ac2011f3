"""The training loop: steps, each with its time and its loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

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

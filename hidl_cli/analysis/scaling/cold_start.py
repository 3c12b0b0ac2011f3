"""Detect a cold start: a first round slowed by caches, clocks and connections that were not ready."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import fmean, stdev

from hidl_cli.analysis.scaling.study import Observation

LEAST_ROUNDS = 4  # of three, two say nothing about what is usual
SIGNIFICANT = 0.01  # false-positive rate: studies without a cold round that are reported to have one
_SIMULATED = 100_000


def cold_rounds(observations: Sequence[Observation], sign: int) -> Iterator[str]:
    """Yield a sentence if the first round of any step was slower than the noise of the others explains.

    ``sign``: 1 if higher values are better, -1 if lower ones are.
    """
    steps = sorted({observation.step for observation in observations})
    cold = [step for step in steps if _cold(_logs(observations, step, sign), SIGNIFICANT / len(steps))]
    if cold:
        named = ", ".join(map(str, cold))
        yield f"the first round was slower than the others (at {named}): a cold start? warm up longer"


def _logs(observations: Sequence[Observation], step: int, sign: int) -> list[float]:
    """Return the logarithmic rate of each round; for copies, their average."""
    rounds: dict[int, list[float]] = {}
    for observation in sorted(observations, key=lambda o: o.round):
        if observation.step == step:
            rounds.setdefault(observation.round, []).append(sign * math.log(observation.value))
    return [fmean(logs) for logs in rounds.values()]


def _cold(logs: Sequence[float], level: float) -> bool:
    first, rest = logs[:1], logs[1:]
    if len(logs) < LEAST_ROUNDS or (spread := stdev(rest)) == 0:
        return False
    return (first[0] - fmean(rest)) / spread < _limit(len(logs), level)


@lru_cache(maxsize=64)
def _limit(rounds: int, level: float) -> float:
    """Return the critical distance of the first of equal rounds from the others, in deviations, at ``level``
    (simulated).
    """
    import numpy as np

    values = np.random.default_rng(0).standard_normal((_SIMULATED, rounds))
    distances = (values[:, 0] - values[:, 1:].mean(axis=1)) / values[:, 1:].std(axis=1, ddof=1)
    return float(np.quantile(distances, level))

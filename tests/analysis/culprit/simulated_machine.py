"""A machine whose speed depends on the configuration, with seeded noise, drift and outliers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hidl_cli.analysis.culprit import CulpritAnswer, Expectation, Mixture, Recorded, RunObservation, answer, next_round

Effect = Callable[[Mixture], float]


@dataclass
class Machine:
    """``effect``: the slowdown of a mixture as a fraction; ``noise``: of one run; ``drift``: of a random walk a run.

    ``outliers``: how many of the runs take ``4 * noise`` to ``12 * noise`` longer; ``level``: the slowness of today.
    """

    effect: Effect
    seed: int
    noise: float = 0.01
    drift: float = 0.003
    outliers: float = 0.0
    level: float = 0.0
    runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._drifted = 0.0

    def run(self, mixture: Mixture) -> float:
        """Return the logarithm of the slowness of one run."""
        self.runs += 1
        self._drifted += self._random.normal(0, self.drift)
        late = self._random.uniform(4, 12) * self.noise if self._random.random() < self.outliers else 0.0
        return self.level + self._drifted + late + math.log1p(self.effect(mixture)) + self._random.normal(0, self.noise)


def one(number: int, slowdown: float = 0.05) -> Effect:
    """A single guilty change."""
    return lambda mixture: slowdown * (number in mixture)


def nothing(_: Mixture) -> float:
    """No change matters."""
    return 0.0


def recorded_by(machine: Machine, count: int, *, then: Effect | None = None, runs: int = 5) -> Recorded:
    """Two nights of ``runs`` repetitions; ``then``: what mattered at that time, if not what does today."""
    before = Machine(then or machine.effect, machine.seed + 10_000, machine.noise, 0.0, machine.outliers)
    every = frozenset(range(count))
    return Recorded(tuple(before.run(frozenset()) for _ in range(runs)), tuple(before.run(every) for _ in range(runs)))


def bisect(
    machine: Machine, recorded: Recorded, count: int, *, confidence: float = 0.95, budget: int = 200
) -> CulpritAnswer:
    """Search as ``hidl bisect`` does, until it is certain or the budget of runs is spent."""
    slowdown = max(0.01, float(np.median(recorded.bad) - np.median(recorded.good)))
    noise = float(np.sqrt((np.var(recorded.good, ddof=1) + np.var(recorded.bad, ddof=1)) / 2))
    expected = Expectation(slowdown, noise, (1.0,) * count)
    observations: list[RunObservation] = []
    found: CulpritAnswer | None = None
    while machine.runs < budget:
        number = len({each.round for each in observations})
        mixtures = next_round(observations, expected, confidence=confidence, seed=machine.seed)
        observations += [RunObservation(f"{number:04}", mixture, machine.run(mixture)) for mixture in mixtures]
        found = answer(observations, expected, recorded, confidence=confidence)
        if found.outcome != "undecided":
            break
    assert found is not None
    return found

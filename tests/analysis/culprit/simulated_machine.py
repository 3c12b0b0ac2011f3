"""A machine whose speed depends on the configuration, with seeded noise, drift and outliers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hidl_cli.analysis import culprit
from hidl_cli.analysis.culprit import (
    CulpritAnswer,
    Expectation,
    Explanation,
    Mixture,
    Recorded,
    RunObservation,
    answer,
    explanations,
    next_round,
)

Effect = Callable[[Mixture], float]
#: Difference between the recorded nights of drawn truths, and the levels that today can have in their terms.
SLOWDOWN = 0.05
LEVELS = ("good", "bad", "other")


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


#: Strata and their prior probabilities: kinds of explanations, divided by the level of today if nothing differs.
STRATA: dict[tuple[str, str], float] = {
    **{("none", level): culprit.PRIORS["none"] * prior for level, prior in zip(LEVELS, culprit.LEVELS, strict=True)},
    **{(kind, "any"): prior for kind, prior in culprit.PRIORS.items() if kind != "none"},
}


@dataclass(frozen=True)
class Drawn:
    """A truth with two changes.

    Attributes:
        weight: Prior probability of the stratum of the truth, relative to its share among consecutive seeds.
        levels: Logarithms of the slowness of the mixtures, relative to the good configuration.
    """

    explanation: Explanation
    levels: dict[Mixture, float]
    weight: float
    machine: Machine
    recorded: Recorded

    def is_right(self, found: CulpritAnswer) -> bool:
        """Check the explanation and the signs of its effects, or the level of today."""
        if found.outcome == "machine":
            return self.explanation.kind == "none" and self.machine.level >= SLOWDOWN
        if found.outcome == "not reproducible":
            return self.explanation.kind == "none" and self.machine.level <= 0
        if self.explanation != found.best.explanation:
            return False
        levels = [self.levels.get(frozenset((change,)), 0.0) for change in self.explanation.changes]
        if self.explanation.kind == "opposite":
            return levels[1] < 0 < levels[0]
        if self.explanation.kind == "both":
            return min(levels) > 0
        return found.outcome == "several" or self.levels.get(frozenset(self.explanation.changes), 0.0) > 0

    def covers(self, found: CulpritAnswer) -> bool:
        """Check whether the interval of the slowdown contains the effect of the guilty changes."""
        _, low, high = found.best.slowdown
        return low <= math.expm1(self.levels.get(frozenset(found.best.guilty), 0.0)) <= high


def draw(seed: int) -> Drawn:
    """Return a truth drawn from the priors of ``bisect``, given two recorded nights of five repetitions.

    The strata take turns, such that rare kinds have as many studies as others.
    """
    random = np.random.default_rng(seed)
    recorded = Recorded(*(tuple(level + 0.01 * random.standard_normal(5)) for level in (0.0, SLOWDOWN)))
    expected = expected_from(recorded, 2)
    (kind, today), prior = list(STRATA.items())[seed % len(STRATA)]
    truth = random.choice(np.array([each for each in explanations(2) if each.kind == kind], dtype=object))
    levels = _draw_levels(truth, expected.slowdown, random)
    if kind != "none":
        today = str(random.choice(LEVELS, p=culprit.LEVELS))
    level = {"good": 0.0, "bad": SLOWDOWN, "other": float(random.normal(SLOWDOWN / 2, SLOWDOWN))}[today]
    noise = (expected.noise or 0.0) * math.exp(culprit._NOISE_SPREAD * random.standard_normal())
    effect = lambda mixture: math.expm1(levels.get(mixture, 0.0))  # noqa: E731
    return Drawn(truth, levels, prior * len(STRATA), Machine(effect, seed, noise, 0.0, level=level), recorded)


def _draw_levels(truth: Explanation, slowdown: float, random: np.random.Generator) -> dict[Mixture, float]:
    """Return the logarithms of the slowness of the mixtures, by the prior of their effects."""
    mixtures = [frozenset(each) for each in ((0,), (1,), (0, 1))]
    if truth.kind == "none":
        return dict.fromkeys(mixtures, 0.0)

    def effect(mean: float, deviation: float) -> float:
        return float(random.normal(mean * slowdown, deviation * slowdown))

    if truth.kind == "several":
        return {mixture: effect(0.5, 0.5) for mixture in mixtures}
    if truth.kind == "both":
        parts = [effect(0.5, 0.75 * culprit._SPREAD) for _ in range(2)]
        return {mixture: sum(parts[change] for change in mixture) for mixture in mixtures}
    if truth.kind == "opposite":
        left = gain = 0.0
        while gain <= 0 or left + gain <= 0:
            left, gain = effect(1, culprit._SPREAD), effect(*culprit._GAIN)
        parts = [left + gain, -gain] if truth.changes == (0, 1) else [-gain, left + gain]
        return {mixture: sum(parts[change] for change in mixture) for mixture in mixtures}
    whole = effect(1, culprit._SPREAD)
    return {mixture: whole * truth.share(mixture) for mixture in mixtures}


def expected_from(recorded: Recorded, count: int) -> Expectation:
    """Return what the two nights let ``hidl bisect`` expect of ``count`` changes."""
    slowdown = max(0.01, float(np.median(recorded.bad) - np.median(recorded.good)))
    noise = float(np.sqrt((np.var(recorded.good, ddof=1) + np.var(recorded.bad, ddof=1)) / 2))
    return Expectation(slowdown, noise, (1.0,) * count)


def bisect(
    machine: Machine, recorded: Recorded, count: int, *, confidence: float = 0.95, budget: int = 200
) -> CulpritAnswer:
    """Search as ``hidl bisect`` does, until it is certain or the budget of runs is spent."""
    expected = expected_from(recorded, count)
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

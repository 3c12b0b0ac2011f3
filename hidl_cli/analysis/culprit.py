"""Find the changes from a good to a bad configuration that cause a slowdown.

The changes are tested in interleaved runs of mixtures: each mixture is the good configuration with some of the changes.

The analysis is a Bayesian comparison of linear models. The logarithm of a run's slowness is the sum of the level of its
round, the effect of its changes and normal noise. Each explanation predicts which mixtures are slow. Its weight is its
prior probability times its marginal likelihood: the levels of rounds have flat priors and cancel (Harville 1974,
Biometrika 61, 383-385), the effects have normal priors around the recorded slowdown and are integrated in closed form
(O'Hagan & Forster 2004, Kendall's Advanced Theory of Statistics 2B, ch. 11), and the noise is integrated on a grid.

The result can be checked after every round without a penalty. If the search stops once an explanation has probability
c, that explanation is wrong with probability 1 - c at most, on average over the priors. Whatever the truth is, the
probability that the evidence against it ever exceeds 1/a is at most a, for any number of checks (Ville 1939; Wald 1945,
Ann. Math. Statist. 16, 117-186).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from statistics import NormalDist, fmean, median, variance
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.analysis.statistics import MIN_REPETITIONS, Interval, difference_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: ``none``: no difference; ``one``: a single change; ``together``: two changes that only matter in combination;
#: ``both``: two changes that each contribute a part; ``either``: two changes that each have the whole effect;
#: ``opposite``: one change that slows the program down and a second that speeds it up by less; ``several``: any other
#: combination.
Kind = Literal["none", "one", "together", "both", "either", "opposite", "several"]

#: Prior probability of each kind of explanation. Few slowdowns require two changes, and many are not reproducible.
PRIORS: dict[Kind, float] = {
    "none": 0.3,
    "one": 0.55,
    "together": 0.04,
    "both": 0.04,
    "either": 0.025,
    "opposite": 0.02,
    "several": 0.025,
}

#: Mean and standard deviation of the speed-up that the second of two ``opposite`` changes causes, as multiples of the
#: recorded slowdown.
_GAIN = (2.0, 1.5)

#: Prior probabilities that are used if both configurations are equally fast today: the machine performs as in the
#: recorded good runs, as in the recorded bad runs, or differently. In the last case, the prior is normal, with a mean
#: of half the recorded slowdown and a standard deviation equal to the recorded slowdown.
LEVELS = (0.45, 0.45, 0.1)
#: Standard deviation of an effect's prior, as a fraction of the recorded slowdown.
_SPREAD = 0.4
#: Standard deviation of the prior for the logarithm of the noise: if the noise was recorded, and if it is unknown.
_NOISE_SPREAD, _NOISE_UNKNOWN = 0.7, 1.2
_NOISE_STEPS = 41
_LEAST_NOISE = 2e-4
#: Half-width of an effect's 95 % interval, in standard errors. The posterior has heavier tails than a normal
#: distribution: 1.96 covered 92 % of the effects in 223 simulated bisects.
_QUANTILE = 2.2
#: Maximum number of effects in an explanation: the combined effect of its changes, and the effects of two single ones.
_MOST_EFFECTS = 3


@dataclass(frozen=True)
class RunObservation:
    """A run: its round, the indices of its changes, and the logarithm of its slowness (its run time or 1 / rate)."""

    round: str
    changes: frozenset[int]
    value: float


@dataclass(frozen=True)
class Expectation:
    """The prior implied by the recorded runs.

    ``slowdown`` and ``noise`` (None if unknown) are logarithms. ``weights`` contains the relative probability that each
    change matters.
    """

    slowdown: float
    noise: float | None
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Explanation:
    """A possible reason why the bad configuration is slower; ``changes`` are the numbers of the changes involved."""

    kind: Kind
    changes: tuple[int, ...] = ()

    def share(self, present: frozenset[int]) -> float:
        """Return the predicted fraction of the slowdown for a mixture: a configuration with the changes ``present``.

        The fraction is unknown for ``several``, which predicts half of the slowdown for any mixture.
        """
        if self.kind == "none":
            return 0.0
        if self.kind == "several":
            return 0.5 if present else 0.0
        hits = [float(change in present) for change in self.changes]
        if self.kind == "either":
            return max(hits)
        if self.kind == "both":
            return sum(hits) / 2
        if self.kind == "opposite":
            return hits[0] + _GAIN[0] * (hits[0] - hits[1])
        return min(hits)


@dataclass(frozen=True)
class Belief:
    """An explanation with its probability and estimated effects on the logarithm of the slowness.

    ``effect`` and its standard ``error`` are for all changes combined; ``effects`` maps each change to its (effect,
    error) pair.
    """

    explanation: Explanation
    probability: float
    effect: float
    error: float
    effects: tuple[tuple[float, float], ...] = ()

    @property
    def guilty(self) -> tuple[int, ...]:
        """The changes responsible for the slowdown."""
        return self.explanation.changes[: 1 if self.explanation.kind == "opposite" else None]

    @property
    def certainty(self) -> float:
        """The probability that the explanation is right and that each effect has the predicted sign."""
        signs = [1.0] * len(self.guilty) + [-1.0] * (len(self.explanation.changes) - len(self.guilty))
        wrong = sum(
            NormalDist().cdf(-sign * effect / error) if error > 0 else float(sign * effect <= 0)
            for sign, (effect, error) in zip(signs, self.effects, strict=True)
        )
        return self.probability * max(0.0, 1 - wrong)

    def level(self, present: frozenset[int]) -> float:
        """Return the effect of a mixture: the good configuration with the changes ``present``."""
        changes, kind = self.explanation.changes, self.explanation.kind
        if kind in ("both", "opposite"):
            return sum(effect for change, (effect, _) in zip(changes, self.effects, strict=True) if change in present)
        return self.effect * self.explanation.share(present)

    @property
    def slowdown(self) -> tuple[float, float, float]:
        """The effect of the changes that cause the slowdown, as a fraction of the run time, and its 95 % interval."""
        if self.explanation.kind == "opposite":
            return _as_fraction(*self.effects[0])
        return _as_fraction(self.effect, self.error)

    @property
    def faster(self) -> tuple[int, tuple[float, float, float]] | None:
        """The change that speeds up the program, and its effect (see ``slowdown``), or None if there is none."""
        if self.explanation.kind != "opposite":
            return None
        return self.explanation.changes[1], _as_fraction(*self.effects[1])


def _as_fraction(effect: float, error: float) -> tuple[float, float, float]:
    return (
        math.expm1(effect),
        math.expm1(effect - _QUANTILE * error),
        math.expm1(effect + _QUANTILE * error),
    )


def explanations(count: int) -> list[Explanation]:
    """Return all possible explanations for ``count`` changes."""
    pairs = list(combinations(range(count), 2))
    return [
        Explanation("none"),
        *(Explanation("one", (number,)) for number in range(count)),
        *(Explanation("together", pair) for pair in pairs),
        *(Explanation("both", pair) for pair in pairs),
        *(Explanation("either", pair) for pair in pairs),
        *(Explanation("opposite", pair) for pair in permutations(range(count), 2)),
        *([Explanation("several")] if count > 1 else []),
    ]


def beliefs(observations: Sequence[RunObservation], expected: Expectation) -> list[Belief]:
    """Return the beliefs in all explanations, starting with the most probable one."""
    return list(_beliefs(tuple(observations), expected))


@lru_cache(maxsize=4)  # ``answer`` and ``next_round`` are called with the same observations
def _beliefs(observations: tuple[RunObservation, ...], expected: Expectation) -> tuple[Belief, ...]:
    import numpy as np

    every = explanations(len(expected.weights))
    noise, of_noise = _noise(expected)
    data = _Centred(observations)
    alike: dict[tuple[object, ...], list[int]] = {}
    designs = [_design(explanation, observations, expected.slowdown) for explanation in every]
    for number, (_, mean, deviation, effects) in enumerate(designs):
        alike.setdefault((tuple(mean), tuple(deviation), tuple(effects)), []).append(number)
    log = np.zeros((len(every), len(noise)))
    effect, error = (np.zeros((len(every), _MOST_EFFECTS, len(noise))) for _ in range(2))
    for numbers in alike.values():
        _, mean, deviation, effects = designs[numbers[0]]
        columns = np.array([designs[number][0] for number in numbers]).reshape(
            len(numbers), len(mean), len(observations)
        )
        found = data.evidence(columns, mean, deviation, effects, noise)
        log[numbers] = found[0]
        effect[numbers, : len(effects)], error[numbers, : len(effects)] = found[1:]
    table = log + of_noise + np.log(_priors(every, expected.weights))[:, None]
    for number, explanation in enumerate(every):
        if explanation.kind == "opposite":
            table[number] += _log_of_signs(effect[number, 1:3], error[number, 1:3])
    table = np.exp(table - table.max())
    whole = table.sum()
    answers = []
    for explanation, row, *moments in zip(every, table, effect, error, strict=True):
        total, *each = [_averaged(row, *part) for part in zip(*moments, strict=True)]
        answers.append(Belief(explanation, float(row.sum() / whole), *total, tuple(each[: len(explanation.changes)])))
    return tuple(sorted(answers, key=lambda belief: -belief.probability))


def _log_of_signs(effect: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
    """Return the logarithm of the probability that ``opposite`` effects have the right signs, relative to the prior.

    The normal priors of the effects include wrong signs. Without this correction, two opposite changes would also be
    explained by the same changes with exchanged roles, at a tenth of the probability.
    """
    import numpy as np

    normal = NormalDist()
    mean, deviation = _GAIN
    of_prior = normal.cdf((1 + mean) / math.hypot(_SPREAD, deviation)) - normal.cdf(-mean / deviation)
    wrong = [
        [
            normal.cdf(-sign * value / width) if width > 0 else float(sign * value <= 0)
            for value, width in zip(*pair, strict=True)
        ]
        for sign, pair in zip((1.0, -1.0), zip(effect, error, strict=True), strict=True)
    ]
    found: NDArray[Any] = np.log(np.maximum(1 - np.sum(wrong, axis=0), 1e-300) / of_prior)
    return found


def _averaged(weights: NDArray[Any], effect: NDArray[Any], error: NDArray[Any]) -> tuple[float, float]:
    """Return the mean and standard deviation of an effect, averaged over the noise."""
    total = weights.sum()
    share = weights / total if total > 0 else weights + 1 / len(weights)
    mean = float(share @ effect)
    return mean, math.sqrt(max(0.0, float(share @ (error**2 + effect**2)) - mean**2))


def _priors(every: Sequence[Explanation], weights: Sequence[float]) -> list[float]:
    def of(explanation: Explanation) -> float:
        return math.prod(weights[number] for number in explanation.changes)

    sums: dict[Kind, float] = {}
    for explanation in every:
        sums[explanation.kind] = sums.get(explanation.kind, 0.0) + of(explanation)
    whole = sum(PRIORS[kind] for kind in sums)
    return [PRIORS[each.kind] / whole * of(each) / sums[each.kind] for each in every]


def _noise(expected: Expectation) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a grid of standard deviations of the noise and the logarithms of their prior weights."""
    import numpy as np

    middle = math.log(max(_LEAST_NOISE, expected.noise or expected.slowdown / 2))
    spread = _NOISE_SPREAD if expected.noise else _NOISE_UNKNOWN
    grid = np.linspace(-3.5, 3.5, _NOISE_STEPS)
    return np.exp(middle + spread * grid), -(grid**2) / 2


_Design = tuple[list[list[float]], list[float], list[float], list[tuple[float, ...]]]


def _design(explanation: Explanation, observations: Sequence[RunObservation], slowdown: float) -> _Design:
    """Return the columns of the model, the prior means and standard deviations of their coefficients, and the effects.

    Effects are expressed as weights of the coefficients, first for all changes together and then for each change.
    """
    kind = explanation.kind
    if kind == "none":
        return [], [], [], [()]
    if kind == "several":  # each mixture has its own mean
        mixtures = sorted({each.changes for each in observations if each.changes}, key=sorted)
        columns = [[float(each.changes == mixture) for each in observations] for mixture in mixtures]
        count = len(columns)
        return columns, [slowdown / 2] * count, [slowdown / 2] * count, [(1.0,) * count]
    present = [[float(number in each.changes) for each in observations] for number in explanation.changes]
    if kind == "both":
        effects: list[tuple[float, ...]] = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]
        return present, [slowdown / 2] * 2, [slowdown / 2 * _SPREAD * 1.5] * 2, effects
    if kind == "opposite":  # the first coefficient is the net (recorded) slowdown, and the second is the speed-up
        first, second = present
        columns = [first, [one - other for one, other in zip(first, second, strict=True)]]
        mean, deviation = _GAIN
        means, deviations = [slowdown, mean * slowdown], [slowdown * _SPREAD, deviation * slowdown]
        return columns, means, deviations, [(1.0, 0.0), (1.0, 1.0), (0.0, -1.0)]
    column = [explanation.share(each.changes) for each in observations]
    effects = [(1.0,)] * (1 + len(explanation.changes))
    return [column], [slowdown], [slowdown * _SPREAD], effects


class _Centred:
    """Observations from which the level of each round is subtracted."""

    def __init__(self, observations: Sequence[RunObservation]) -> None:
        import numpy as np

        names = sorted({each.round for each in observations})
        self._rounds = [[at for at, each in enumerate(observations) if each.round == name] for name in names]
        self._free = len(observations) - len(names)
        self._values = self._centre(np.array([each.value for each in observations]))

    def _centre(self, values: NDArray[Any]) -> NDArray[Any]:
        """Subtract the mean of each round along the last axis."""
        import numpy as np

        found = np.array(values, dtype=float)
        for places in self._rounds:
            found[..., places] -= found[..., places].mean(axis=-1, keepdims=True)
        return found

    def evidence(
        self,
        columns: NDArray[Any],
        means: Sequence[float],
        deviations: Sequence[float],
        effects: Sequence[Sequence[float]],
        noise: NDArray[Any],
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the logarithm of the marginal likelihood, the effects and their standard errors.

        Args:
            columns: Array with the axes (model, coefficient, observation).
            means: Prior means of the coefficients.
            deviations: Prior standard deviations of the coefficients.
            effects: Weights of the coefficients in each effect.
            noise: Grid of standard deviations of the noise.

        Returns:
            An array with the axes (model, noise), and two arrays with the axes (model, effect, noise).
        """
        import numpy as np

        x = self._centre(columns)
        scale, mean = np.array(deviations), np.array(means)
        variance = (noise**2)[:, None]
        rest = self._values - np.einsum("hpn,p->hn", x, mean)
        z = x * scale[:, None]
        values, vectors = np.linalg.eigh(np.einsum("hpn,hqn->hpq", z, z))
        values = np.maximum(values, 0.0)[:, None, :]
        along = np.einsum("hpk,hpn,hn->hk", vectors, z, rest)[:, None, :]
        square = np.einsum("hn,hn->h", rest, rest)[:, None] - (along**2 / (values + variance)).sum(axis=2)
        log = -self._free * np.log(noise) - np.log1p(values / variance).sum(axis=2) / 2 - square / noise**2 / 2
        weights = np.array(effects, dtype=float).reshape(len(effects), len(mean))
        parts = np.einsum("op,p,hpk->hok", weights, scale, vectors)[:, :, None, :]
        shrunk = (values + variance)[:, None]
        effect = (weights @ mean)[:, None] + (along[:, None] * parts / shrunk).sum(axis=3)
        error = np.sqrt((parts**2 * variance / shrunk).sum(axis=3))
        return log, effect, error


# The search: pure functions that choose the next round based on the observations, and determine when to stop.


#: Minimum number of rounds for an answer, because fewer rounds do not show how noisy the machine is today.
LEAST_ROUNDS = 4
#: Minimum number of runs with only the suspected changes, and of runs with all changes except these, before the
#: suspected changes are reported as the cause.
_LEAST_CONFIRMING = 2
#: Largest deviation of the median of these runs from the prediction, as a fraction of the effect.
_TOLERANCE = 0.25
#: Minimum number of runs of the good configuration when there is no difference between the configurations to test.
_LEAST_ALONE = 6
_CANDIDATES = 60
_EVEN = 0.5
_NEGLIGIBLE = 1e-3

#: The indices of the changes in a mixture, which is the good configuration with these changes.
Mixture = frozenset[int]
#: ``changes``: one or two changes explain the slowdown; ``several``: more than two changes; ``machine``: the good
#: configuration is slow today; ``not reproducible``: both configurations are fast today; ``undecided``: more runs are
#: needed.
Outcome = Literal["changes", "several", "machine", "not reproducible", "undecided"]


@dataclass(frozen=True)
class Recorded:
    """Logarithms of the slowness of the recorded good and bad runs."""

    good: tuple[float, ...]
    bad: tuple[float, ...]


@dataclass(frozen=True)
class Today:
    """The change in the good configuration's run time since it was recorded, as a fraction.

    ``interval`` is None if there are too few values.
    """

    shift: float
    interval: Interval | None


@dataclass(frozen=True)
class CulpritAnswer:
    """The state of the search.

    Attributes:
        confidence: Probability that ``outcome`` is right and its effects have the predicted signs.
        beliefs: All explanations, starting with the most probable one.
        today: Change of the good configuration since it was recorded, or None before its first run.
    """

    outcome: Outcome
    confidence: float
    beliefs: tuple[Belief, ...]
    today: Today | None

    @property
    def best(self) -> Belief:
        """The most probable explanation."""
        return self.beliefs[0]

    @property
    def guilty(self) -> tuple[int, ...]:
        """The changes that cause the slowdown; empty unless the outcome is ``changes``."""
        return self.best.guilty if self.outcome == "changes" else ()


def next_round(
    observations: Sequence[RunObservation],
    expected: Expectation,
    *,
    confidence: float,
    seed: int,
    broken: Collection[Mixture] = (),
) -> list[Mixture]:
    """Return the mixtures (sets of changes) to run in the next round, in order. The choice is reproducible.

    Args:
        observations: Runs of all previous rounds.
        expected: Prior of the slowdown, the noise and the changes.
        confidence: Probability at which an explanation is accepted.
        seed: Seed of the random choices.
        broken: Mixtures that failed and are not run again.
    """
    number = len({each.round for each in observations})
    chance = random.Random(f"{seed}.{number}")
    count = len(expected.weights)
    good, bad = frozenset[int](), frozenset(range(count))
    if count == 0:
        return [good]
    found = beliefs(observations, expected) if observations else []
    mixtures = [good, bad]
    if count > 1 and found and _probability_of_none(found) < _EVEN:
        mixture = _choose(found, count, confidence, chance, set(broken))
        mixtures += [mixture, bad - mixture] if mixture is not None else []
    chance.shuffle(mixtures)
    return mixtures


def answer(
    observations: Sequence[RunObservation], expected: Expectation, recorded: Recorded, *, confidence: float
) -> CulpritAnswer:
    """Evaluate the runs completed so far."""
    found = tuple(beliefs(observations, expected))
    today = _today(observations, recorded)
    if not expected.weights:
        enough = len(observations) >= _LEAST_ALONE
        return _compare_with_records(observations, recorded, confidence if enough else math.inf, found, today)
    best = found[0]
    rounds = len({each.round for each in observations})
    if best.certainty < confidence or rounds < LEAST_ROUNDS:
        return CulpritAnswer("undecided", best.certainty, found, today)
    kind = best.explanation.kind
    if kind == "none":
        return _compare_with_records(observations, recorded, confidence, found, today)
    if kind == "several":
        return CulpritAnswer("several", best.probability, found, today)
    if not _is_confirmed(observations, best, len(expected.weights)):
        return CulpritAnswer("undecided", best.certainty, found, today)
    return CulpritAnswer("changes", best.certainty, found, today)


def _compare_with_records(
    observations: Sequence[RunObservation],
    recorded: Recorded,
    confidence: float,
    found: tuple[Belief, ...],
    today: Today | None,
) -> CulpritAnswer:
    """Determine whether two equally fast configurations perform as in the good night or as in the bad night.

    Args:
        observations: All runs.
        recorded: Values of the good and the bad night.
        confidence: Probability at which a level is accepted.
        found: All explanations; the most probable is that the configurations are equal.
        today: Change of the good configuration.
    """
    fast, slow = _levels([each.value for each in observations if not each.changes], recorded)
    outcome: Outcome = "not reproducible" if fast > slow else "machine"
    certainty = found[0].probability * max(fast, slow)
    return CulpritAnswer(outcome if certainty >= confidence else "undecided", certainty, found, today)


def _levels(values: Sequence[float], recorded: Recorded) -> tuple[float, float]:
    """Return the probability that today's level is at most the good night's, and that it is at least the bad night's.

    The difference from a night has Student's t distribution with Welch's degrees of freedom; ``LEVELS`` are the priors.
    Both probabilities are 0 if there are fewer than 3 values.
    """
    if len(values) < MIN_REPETITIONS or not (recorded.good and recorded.bad):
        return 0.0, 0.0
    good, bad = (_difference(values, night) for night in (recorded.good, recorded.bad))
    slowdown = max(_LEAST_NOISE, fmean(recorded.bad) - fmean(recorded.good))
    other = NormalDist(slowdown / 2, math.hypot(slowdown, good.error))
    precisions = good.error**-2, slowdown**-2
    level = NormalDist(
        (good.mean * precisions[0] + slowdown / 2 * precisions[1]) / sum(precisions), 1 / math.sqrt(sum(precisions))
    )
    weights = [
        prior * each for prior, each in zip(LEVELS, (good.density, bad.density, other.pdf(good.mean)), strict=True)
    ]
    whole = sum(weights)
    if whole <= 0:
        return float(good.mean <= 0), float(bad.mean >= 0)
    between = weights[2] / whole
    return weights[0] / whole + between * level.cdf(0), weights[1] / whole + between * (1 - level.cdf(slowdown))


@dataclass(frozen=True)
class _Difference:
    """The difference between today's mean and a recorded night's mean, with standard error and degrees of freedom."""

    mean: float
    error: float
    free: float

    @property
    def density(self) -> float:
        """The density of the observed difference if both levels are equal."""
        t = self.mean / self.error
        log = math.lgamma((self.free + 1) / 2) - math.lgamma(self.free / 2) - math.log(math.pi * self.free) / 2
        return math.exp(log - (self.free + 1) / 2 * math.log1p(t * t / self.free)) / self.error


def _difference(values: Sequence[float], night: Sequence[float]) -> _Difference:
    """Compare today's values with the values that were recorded in the good or the bad night.

    If there are too few recorded values to estimate the noise of that night, today's noise is used instead.
    """
    of_today = variance(values) / len(values)
    enough = len(night) >= MIN_REPETITIONS
    of_night = variance(night if enough else values) / len(night)
    error = max(_LEAST_NOISE, math.sqrt(of_today + of_night))
    free = float(len(values) - 1)
    if enough and of_today + of_night > 0:
        free = (of_today + of_night) ** 2 / (of_today**2 / free + of_night**2 / (len(night) - 1))
    return _Difference(fmean(values) - fmean(night), error, free)


def _today(observations: Sequence[RunObservation], recorded: Recorded) -> Today | None:
    values = [each.value for each in observations if not each.changes]
    if not values:
        return None
    interval = difference_interval(values, recorded.good)
    return Today(
        math.expm1(fmean(values) - fmean(recorded.good)),
        interval and Interval(math.expm1(interval.low), math.expm1(interval.high)),
    )


def _is_confirmed(observations: Sequence[RunObservation], best: Belief, count: int) -> bool:
    """Return whether runs with only the suspected changes are slow, and runs with only the other changes are fast.

    The likelihood tolerates single runs that contradict an explanation, for example because a third change is required
    as well. If the runs of this check contradict the explanation, the next round repeats them.
    """
    suspects = frozenset(best.explanation.changes)
    alone = _above_good(observations, suspects)
    others = _above_good(observations, frozenset(range(count)) - suspects)
    if min(len(alone), len(others)) < _LEAST_CONFIRMING:
        return False
    limit = _TOLERANCE * max(best.effect, best.level(frozenset(best.guilty)))
    return abs(median(alone) - best.level(suspects)) < limit and abs(median(others)) < limit


def _above_good(observations: Sequence[RunObservation], mixture: Mixture) -> list[float]:
    """Return how much slower each run of the mixture was than the good configuration in the same round."""
    good = {each.round: each.value for each in observations if not each.changes}
    return [each.value - good[each.round] for each in observations if each.changes == mixture and each.round in good]


def _probability_of_none(found: Sequence[Belief]) -> float:
    return sum(each.probability for each in found if each.explanation.kind == "none")


def _choose(
    found: Sequence[Belief], count: int, confidence: float, chance: random.Random, broken: set[Mixture]
) -> Mixture | None:
    """Return the most informative set of changes to test, or None if each set or its complement has failed to run."""
    every = frozenset(range(count))
    slow = [each for each in found if each.explanation.kind != "none"]
    slow = [each for each in slow if each.probability >= _NEGLIGIBLE * slow[0].probability]
    if slow[0].explanation.changes and slow[0].probability >= confidence * sum(each.probability for each in slow):
        suspects = frozenset(slow[0].explanation.changes)
        if suspects != every and not {suspects, every - suspects} & broken:
            return suspects
    candidates = [
        each
        for each in _candidates(slow, count, chance)
        if each and each != every and not {each, every - each} & broken
    ]
    return max(candidates, key=lambda mixture: _entropy(slow, mixture, every - mixture), default=None)


def _candidates(slow: Sequence[Belief], count: int, chance: random.Random) -> Iterator[Mixture]:
    """Yield sets of changes that may distinguish the explanations.

    The sets are random halves of all changes, the changes in the most probable explanations, and single changes.
    """
    numbers = list(range(count))
    for _ in range(_CANDIDATES):
        yield frozenset(chance.sample(numbers, chance.choice([count // 2, (count + 1) // 2])))
    for belief in slow[:6]:
        yield frozenset(belief.explanation.changes)
        for number in belief.explanation.changes:
            yield frozenset([number])
    yield from (frozenset([number]) for number in numbers)


def _entropy(slow: Sequence[Belief], one: Mixture, other: Mixture) -> float:
    """Return the entropy of the predicted outcomes of two mixtures, in nats."""
    outcomes: dict[tuple[float, float], float] = defaultdict(float)
    for belief in slow:
        if belief.explanation.kind != "several":
            outcomes[belief.explanation.share(one), belief.explanation.share(other)] += belief.probability
    whole = sum(outcomes.values())
    return -sum(each / whole * math.log(each / whole) for each in outcomes.values() if each > 0) if whole else 0.0

"""How likely each explanation of a slowdown is, after interleaved runs of mixed configurations.

Bayesian comparison of linear models. The logarithm of a run's slowness is the level of its round, plus the effect of
the changes in it, plus normal noise. Each explanation says which mixtures are slow; its weight is its prior times its
marginal likelihood: levels of rounds have flat priors and cancel (Harville 1974, Biometrika 61, 383-385), effects have
normal priors around the recorded slowdown and are integrated in closed form (O'Hagan & Forster 2004, Kendall's Advanced
Theory of Statistics 2B, ch. 11), the noise on a grid.

Looking after each round costs nothing. Stopping once an explanation has probability c, the named one is wrong with
probability 1 - c at most, on average over the priors; and whatever is true, the chance that the evidence against it
ever exceeds 1/a is at most a, in however many looks (Ville 1939; Wald 1945, Ann. Math. Statist. 16, 117-186).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from statistics import NormalDist, fmean, median, stdev
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.analysis.statistics import MIN_REPETITIONS, Interval, difference_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: ``none``: no difference; ``one``: one change; ``together``: two that only matter together; ``both``: two that each
#: add a share; ``either``: two of which either alone has the whole effect; ``opposite``: the first made it slower, the
#: second made it faster by less; ``several``: anything else.
Kind = Literal["none", "one", "together", "both", "either", "opposite", "several"]

#: Prior probabilities of the kinds. Few slowdowns need two changes, and many do not come back.
PRIORS: dict[Kind, float] = {
    "none": 0.3,
    "one": 0.55,
    "together": 0.04,
    "both": 0.04,
    "either": 0.025,
    "opposite": 0.02,
    "several": 0.025,
}

#: Mean and standard deviation of what the faster of two ``opposite`` changes gains, in recorded slowdowns.
_GAIN = (2.0, 1.5)

#: Standard deviation of the effect's prior, as a fraction of the recorded slowdown.
_SPREAD = 0.4
#: Of the logarithm of the noise, around the recorded noise; where none is recorded.
_NOISE_SPREAD, _NOISE_UNKNOWN = 0.7, 1.2
_NOISE_STEPS = 41
_LEAST_NOISE = 2e-4
_QUANTILE = 1.96
#: The effects of an explanation: that of all its changes, and those of two.
_MOST_EFFECTS = 3


@dataclass(frozen=True)
class Observation:
    """One run: the round it belongs to, the numbers of the changes in it, and the logarithm of its slowness."""

    round: str
    changes: frozenset[int]
    value: float


@dataclass(frozen=True)
class Expectation:
    """What the recorded runs let expect: the slowdown and the noise (None: unknown) as logarithms.

    ``weights``: how likely each change is to matter, relative to each other.
    """

    slowdown: float
    noise: float | None
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Explanation:
    """Why the bad configuration is slower: ``changes`` are the numbers of the guilty ones."""

    kind: Kind
    changes: tuple[int, ...] = ()

    def share(self, present: frozenset[int]) -> float:
        """Return the fraction of the slowdown that a mixture with these changes has; of ``several`` unknown: half."""
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
    """An explanation with its probability, and its effect on the logarithm of the slowness with standard error.

    ``effect`` is that of all its changes together, ``effects`` are those of each change with their errors.
    """

    explanation: Explanation
    probability: float
    effect: float
    error: float
    effects: tuple[tuple[float, float], ...] = ()

    @property
    def guilty(self) -> tuple[int, ...]:
        """The changes that it makes responsible for the slowdown."""
        return self.explanation.changes[: 1 if self.explanation.kind == "opposite" else None]

    @property
    def certainty(self) -> float:
        """The probability of the explanation and that each effect has the sign that it says."""
        signs = [1.0] * len(self.guilty) + [-1.0] * (len(self.explanation.changes) - len(self.guilty))
        wrong = sum(
            NormalDist().cdf(-sign * effect / error) if error > 0 else float(sign * effect <= 0)
            for sign, (effect, error) in zip(signs, self.effects, strict=True)
        )
        return self.probability * max(0.0, 1 - wrong)

    def level(self, present: frozenset[int]) -> float:
        """Return the effect of a mixture with these changes."""
        changes, kind = self.explanation.changes, self.explanation.kind
        if kind in ("both", "opposite"):
            return sum(effect for change, (effect, _) in zip(changes, self.effects, strict=True) if change in present)
        return self.effect * self.explanation.share(present)

    @property
    def slowdown(self) -> tuple[float, float, float]:
        """The effect of the guilty changes as a fraction of the time, and the ends of its 95 % interval."""
        if self.explanation.kind == "opposite":
            return _as_fraction(*self.effects[0])
        return _as_fraction(self.effect, self.error)

    @property
    def faster(self) -> tuple[int, tuple[float, float, float]] | None:
        """The change that made it faster, and its effect as ``slowdown``; None if no change did."""
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
    """Return all explanations with ``count`` changes."""
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


def beliefs(observations: Sequence[Observation], expected: Expectation) -> list[Belief]:
    """Return all explanations, the most probable first."""
    return list(_beliefs(tuple(observations), expected))


@lru_cache(maxsize=4)  # the choice of a round and the answer after the one before ask for the same
def _beliefs(observations: tuple[Observation, ...], expected: Expectation) -> tuple[Belief, ...]:
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
    """Return the logarithm of the probability of the signs of ``opposite``, relative to that by its prior.

    The normal priors of the effects include other signs. By these, two changes of which the first is slower and the
    second faster by less are also explained, at a tenth of the probability, by the two in exchanged roles.
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
    """Return mean and standard deviation of the effect over the noise."""
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
    """Return the grid of standard deviations of the noise, and the logarithms of their prior weights."""
    import numpy as np

    middle = math.log(max(_LEAST_NOISE, expected.noise or expected.slowdown / 2))
    spread = _NOISE_SPREAD if expected.noise else _NOISE_UNKNOWN
    places = np.linspace(-3.5, 3.5, _NOISE_STEPS)
    return np.exp(middle + spread * places), -(places**2) / 2


_Design = tuple[list[list[float]], list[float], list[float], list[tuple[float, ...]]]


def _design(explanation: Explanation, observations: Sequence[Observation], slowdown: float) -> _Design:
    """Return the columns of the model, the prior means and standard deviations of their coefficients, and the effects.

    The effects are weights of the coefficients: those of all changes together, then of each change.
    """
    kind = explanation.kind
    if kind == "none":
        return [], [], [], [()]
    if kind == "several":  # each mixture has a level of its own
        mixtures = sorted({each.changes for each in observations if each.changes}, key=sorted)
        columns = [[float(each.changes == mixture) for each in observations] for mixture in mixtures]
        count = len(columns)
        return columns, [slowdown / 2] * count, [slowdown / 2] * count, [(1.0,) * count]
    there = [[float(number in each.changes) for each in observations] for number in explanation.changes]
    if kind == "both":
        effects: list[tuple[float, ...]] = [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]
        return there, [slowdown / 2] * 2, [slowdown / 2 * _SPREAD * 1.5] * 2, effects
    if kind == "opposite":  # the recorded slowdown is what is left: the first coefficient; the second is the gain
        first, second = there
        columns = [first, [one - other for one, other in zip(first, second, strict=True)]]
        mean, deviation = _GAIN
        means, deviations = [slowdown, mean * slowdown], [slowdown * _SPREAD, deviation * slowdown]
        return columns, means, deviations, [(1.0, 0.0), (1.0, 1.0), (0.0, -1.0)]
    column = [explanation.share(each.changes) for each in observations]
    effects = [(1.0,)] * (1 + len(explanation.changes))
    return [column], [slowdown], [slowdown * _SPREAD], effects


class _Centred:
    """Observations without the levels of their rounds."""

    def __init__(self, observations: Sequence[Observation]) -> None:
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
        """Return the logarithm of the marginal likelihood, the effects and their errors.

        ``columns`` has the axes model, coefficient, observation; the results have model, (effect,) noise.
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


# Choose the runs of the next round, and stop once the answer is certain enough: a pure function of what was measured.


#: Rounds before which nothing is called certain: the noise of today must have shown.
LEAST_ROUNDS = 4
#: Runs of the named changes alone, and of all others without them, before they are called guilty.
_LEAST_CONFIRMING = 2
#: The part of the effect by which the middle of these runs may be beside what the explanation says.
_BESIDE = 0.25
#: Runs of the good configuration where nothing differs that can be tried.
_LEAST_ALONE = 6
_CANDIDATES = 60
_EVEN = 0.5
_NEGLIGIBLE = 1e-3

Mixture = frozenset[int]
#: ``changes``: the named ones explain it; ``several``: more than two, together; ``machine``: the good configuration is
#: slow today; ``not reproducible``: both are fast today; ``undecided``: not yet, or not within the budget.
Outcome = Literal["changes", "several", "machine", "not reproducible", "undecided"]


@dataclass(frozen=True)
class Recorded:
    """Logarithms of the slowness that was recorded when it was good, and when it was bad."""

    good: tuple[float, ...]
    bad: tuple[float, ...]


@dataclass(frozen=True)
class Today:
    """The good configuration today against its recorded values, as a fraction of the time; None: too few values."""

    shift: float
    interval: Interval | None


@dataclass(frozen=True)
class Answer:
    """What is known. ``confidence``: the probability of ``outcome`` with its effects' signs.

    ``beliefs``: the most probable first. ``today``: None before the good configuration has run.
    """

    outcome: Outcome
    confidence: float
    beliefs: tuple[Belief, ...]
    today: Today | None

    @property
    def best(self) -> Belief:
        """The most probable explanation."""
        return self.beliefs[0]


def next_round(
    observations: Sequence[Observation],
    expected: Expectation,
    *,
    confidence: float,
    seed: int,
    broken: Collection[Mixture] = (),
) -> list[Mixture]:
    """Return the mixtures of the next round in the order in which they run; ``broken`` ones are not run again.

    The same arguments give the same round.
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
    observations: Sequence[Observation], expected: Expectation, recorded: Recorded, *, confidence: float
) -> Answer:
    """Return what the runs say so far."""
    found = tuple(beliefs(observations, expected))
    today = _today(observations, recorded)
    if not expected.weights:
        enough = len(observations) >= _LEAST_ALONE
        outcome = _slow_or_not(observations, recorded, confidence) if enough else "undecided"
        return Answer(outcome, confidence if outcome != "undecided" else 0.0, found, today)
    best = found[0]
    rounds = len({each.round for each in observations})
    if best.certainty < confidence or rounds < LEAST_ROUNDS:
        return Answer("undecided", best.certainty, found, today)
    kind = best.explanation.kind
    if kind == "none":
        outcome = _slow_or_not(observations, recorded, confidence)
        # Both must hold: there is no difference today, and the level of today is not that of the other night.
        return Answer(outcome, best.probability * (1 + confidence) / 2, found, today)
    if kind == "several":
        return Answer("several", best.probability, found, today)
    if not _is_confirmed(observations, best, len(expected.weights)):
        return Answer("undecided", best.certainty, found, today)
    return Answer("changes", best.certainty, found, today)


def _slow_or_not(observations: Sequence[Observation], recorded: Recorded, confidence: float) -> Outcome:
    """Return which recorded level the good configuration has today; ``undecided`` if it can be both or is between."""
    values = [each.value for each in observations if not each.changes]
    good = _difference(values, recorded.good, confidence)
    bad = _difference(values, recorded.bad, confidence)
    if good is None or bad is None:
        return "undecided"
    is_fast = good.low <= 0 < -bad.high
    is_slow = bad.high >= 0 < good.low
    return "not reproducible" if is_fast else "machine" if is_slow else "undecided"


def _difference(values: Sequence[float], recorded: Sequence[float], confidence: float) -> Interval | None:
    """Return the interval of the difference of means; of too few recorded values by the noise of today."""
    found = difference_interval(values, recorded, confidence=confidence)
    if found is not None or len(values) < MIN_REPETITIONS or not recorded:
        return found
    z, free = NormalDist().inv_cdf((1 + confidence) / 2), len(values) - 1
    # Student's quantile by the expansion of Abramowitz & Stegun 26.7.5.
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    half = t * stdev(values) * math.sqrt(1 / len(values) + 1 / len(recorded))
    middle = fmean(values) - fmean(recorded)
    return Interval(middle - half, middle + half)


def _today(observations: Sequence[Observation], recorded: Recorded) -> Today | None:
    values = [each.value for each in observations if not each.changes]
    if not values:
        return None
    interval = difference_interval(values, recorded.good)
    return Today(
        math.expm1(fmean(values) - fmean(recorded.good)),
        interval and Interval(math.expm1(interval.low), math.expm1(interval.high)),
    )


def _is_confirmed(observations: Sequence[Observation], best: Belief, count: int) -> bool:
    """Were the named changes slow without any other, and all others fast without them?

    The likelihood forgives single runs; where these few belie the explanation, as where a third change has to come to
    two, the next round runs them again.
    """
    named = frozenset(best.explanation.changes)
    alone = _above_good(observations, named)
    others = _above_good(observations, frozenset(range(count)) - named)
    if min(len(alone), len(others)) < _LEAST_CONFIRMING:
        return False
    beside = _BESIDE * max(best.effect, best.level(frozenset(best.guilty)))
    return abs(median(alone) - best.level(named)) < beside and abs(median(others)) < beside


def _above_good(observations: Sequence[Observation], mixture: Mixture) -> list[float]:
    """How much slower than the good configuration of its round each run of the mixture was."""
    good = {each.round: each.value for each in observations if not each.changes}
    return [each.value - good[each.round] for each in observations if each.changes == mixture and each.round in good]


def _probability_of_none(found: Sequence[Belief]) -> float:
    return sum(each.probability for each in found if each.explanation.kind == "none")


def _choose(
    found: Sequence[Belief], count: int, confidence: float, chance: random.Random, broken: set[Mixture]
) -> Mixture | None:
    """Return the mixture that says the most; None if all are broken."""
    every = frozenset(range(count))
    slow = [each for each in found if each.explanation.kind != "none"]
    slow = [each for each in slow if each.probability >= _NEGLIGIBLE * slow[0].probability]
    if slow[0].explanation.changes and slow[0].probability >= confidence * sum(each.probability for each in slow):
        named = frozenset(slow[0].explanation.changes)
        if named != every and not {named, every - named} & broken:
            return named
    candidates = [
        each
        for each in _candidates(slow, count, chance)
        if each and each != every and not {each, every - each} & broken
    ]
    return max(candidates, key=lambda mixture: _entropy(slow, mixture, every - mixture), default=None)


def _candidates(slow: Sequence[Belief], count: int, chance: random.Random) -> Iterator[Mixture]:
    """Yield mixtures that might tell explanations apart: random halves, and the changes of the most probable ones."""
    numbers = list(range(count))
    for _ in range(_CANDIDATES):
        yield frozenset(chance.sample(numbers, chance.choice([count // 2, (count + 1) // 2])))
    for belief in slow[:6]:
        yield frozenset(belief.explanation.changes)
        for number in belief.explanation.changes:
            yield frozenset([number])
    yield from (frozenset([number]) for number in numbers)


def _entropy(slow: Sequence[Belief], one: Mixture, other: Mixture) -> float:
    """Return the entropy of the outcomes of the two mixtures, in nats."""
    outcomes: dict[tuple[float, float], float] = defaultdict(float)
    for belief in slow:
        if belief.explanation.kind != "several":
            outcomes[belief.explanation.share(one), belief.explanation.share(other)] += belief.probability
    whole = sum(outcomes.values())
    return -sum(each / whole * math.log(each / whole) for each in outcomes.values() if each > 0) if whole else 0.0

"""Choose the runs of the next round, and stop once the answer is certain enough: a pure function of what was measured.

A round holds the good and the bad configuration, which tell the level of the machine at that time and the size of the
effect, a mixture of changes, and the mixture of all others: where one change is guilty, exactly one of the two is slow.
The mixture is the one whose two outcomes are least certain in advance (the greatest entropy), so that it rules out the
most. The order within a round is random.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev
from typing import Literal

from hidl_cli.analysis.culprit.posterior import Belief, Expectation, Observation, beliefs
from hidl_cli.analysis.statistics import MIN_REPETITIONS, Interval, difference_interval

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

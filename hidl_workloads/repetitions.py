"""The sequential test of a scaling study: an interval that may be looked at after every round.

Used inside jobs, where there is NumPy but no hidl, and by hidl itself: the job stops by the rule of the verdict.

An interval covers the *typical* value, the pseudomedian of Hodges and Lehmann (1963, Ann. Math. Statist. 34, 598-611).
Up to 10 values it is ``mean ± c·s/√n``, above that the exact interval of Wilcoxon's signed-rank test. The constants
were chosen by simulation such that studies at the target are judged wrongly in at most 2 % of cases with fewer than 10
rounds, and in at most 3 % with more, under normal, exponential and heavy-tailed noise, outliers and drift
(``python -m tests.analysis.simulation``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 3  # minimum number of repetitions; two values do not show the shape of a distribution
SAME = 1e-12  # logarithms that differ by less only differ by rounding
WRONG = 0.03  # fraction of studies at the target that may get the wrong verdict
WRONG_OF_FEW = 0.02  # the same for studies with fewer than MANY rounds
MANY = 10
SMALLEST = 0.02  # largest difference between two settings that is not worth more rounds
FINEST = 0.005  # an efficiency known to ±0.5 % is precise enough for any target

_LARGEST = 700.0  # approximate logarithm of the largest float

# Multiples of the standard error, by the number of values, for an interval that is only evaluated once ...
_ONCE = {3: 11.7, 4: 7.2, 5: 5.5, 6: 4.7, 7: 4.1, 8: 3.8, 9: 3.5}
# ... or after every round, and after the last of this many rounds.
_ALWAYS = {3: 90.0, 4: 30.0, 5: 14.0, 6: 7.2, 7: 7.2, 8: 7.0, 9: 6.6, 10: 6.3}
_LAST = {**_ONCE, 7: 4.6, 8: 4.3, 9: 4.1}
# One-sided levels of the signed-rank interval, for an interval that is only evaluated once ...
_TAIL_ONCE = 0.012
# ... or after every round, and after the last of at most this many rounds.
_TAIL_ALWAYS = 0.0007
_TAIL_LAST = ((20, 0.007), (30, 0.0055), (40, 0.004), (80, 0.002))
# The level of each of several steps is divided by this power of their number. With skewed noise, the share of wrong
# intervals falls more slowly than the level: without the power, 4.6 % of studies with 8 steps were wrong.
_POWER_OF_MULTIPLE = 1.7
_POWER_OF_TAIL = 1.2


class Bounds(NamedTuple):
    """The ends of an interval, included."""

    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """The decision to stop a study or to continue it, and the reason as a sentence."""

    stop: bool
    why: str


def confidence(steps: int, rounds: int) -> float:
    """Return the confidence of the interval of each of ``steps`` scaled steps (Bonferroni).

    A single step that fails wrongly fails the study, so each may err in only a part of the cases. Few rounds do not
    show the shape of the noise: a multiple that covers skewed noise in 98 % of cases covers normal noise in 99.5 %.

    Args:
        steps: Number of intervals that must hold together.
        rounds: Number of rounds; of a study that is looked at after every round, the largest number.
    """
    return 1 - (WRONG if rounds >= MANY else WRONG_OF_FEW) / max(1, steps)


def required_confidence(steps: int, rounds: int | None) -> float:
    """Return the confidence that each single look uses, for estimates of the number of repetitions needed."""
    tail = _TAIL_ONCE if rounds is None else _TAIL_ALWAYS
    return 1 - 2 * float(tail / max(1, steps) ** _POWER_OF_TAIL)


def typical(values: Sequence[float]) -> float:
    """Return the pseudomedian, the median of the averages of all pairs of ``values`` (each with itself included)."""
    import numpy as np

    return float(np.median(_walsh(np.asarray(values, dtype=float))))


def interval(
    values: Sequence[float], *, steps: int = 1, rounds: int | None = None, margin: float = 0.0
) -> Bounds | None:
    """Return the interval of the typical value; None for fewer than 3 values or values without spread.

    Args:
        values: One value per round, in any order.
        steps: Number of intervals that must hold together (see ``confidence``).
        rounds: Largest number of rounds of a study that is looked at after every round; None for a single look.
        margin: Largest error that all values may share; widens the interval at both ends (see ``rounding``).
    """
    import numpy as np

    n, found = len(values), np.asarray(values, dtype=float)
    if n < LEAST or np.ptp(found) < SAME:
        return None
    multiple = _multiple(n, steps, rounds)
    if multiple is None:
        ordered = np.sort(_walsh(found))
        outside = _outside(n, _tail(n, rounds) / steps**_POWER_OF_TAIL)
        return Bounds(float(ordered[outside - 1]) - margin, float(ordered[-outside]) + margin)
    half = multiple * float(found.std(ddof=1)) / math.sqrt(n) + margin
    mean = float(found.mean())
    return Bounds(mean - half, mean + half)


def _walsh(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    first, second = np.triu_indices(len(values))
    averages: NDArray[Any] = (values[first] + values[second]) / 2
    return averages


def _tail(n: int, rounds: int | None) -> float:
    if rounds is None:
        return _TAIL_ONCE
    if n < rounds:
        return _TAIL_ALWAYS
    return next((tail for most, tail in _TAIL_LAST if rounds <= most), _TAIL_ALWAYS)


def _multiple(n: int, steps: int, rounds: int | None) -> float | None:
    """Return the multiple of the standard error; None if the signed-rank interval applies."""
    table = _ONCE if rounds is None else _LAST if n >= rounds else _ALWAYS
    if n not in table and _outside(n, _tail(n, rounds) / steps**_POWER_OF_TAIL):
        return None
    multiple = table.get(n) or table[max(table)]  # too few values for a signed-rank interval of all steps
    return multiple if steps == 1 else _quantile(_t_tail(multiple, n - 1) / steps**_POWER_OF_MULTIPLE, n - 1)


@lru_cache(maxsize=512)
def _outside(n: int, tail: float) -> int:
    """Return how many of the ordered pair averages are outside of the interval at each end, plus one; 0 for none.

    ``P(T < k) <= tail`` for Wilcoxon's statistic T of n values, whose distribution is counted exactly.
    """
    import numpy as np

    sums = np.zeros(n * (n + 1) // 2 + 1)
    sums[0] = 1.0
    for rank in range(1, n + 1):
        sums[rank:] = (sums[rank:] + sums[:-rank]) / 2
        sums[:rank] /= 2
    return int(np.searchsorted(np.cumsum(sums), tail, side="right"))


def _t_tail(t: float, degrees: int) -> float:
    """Return ``P(T > t)`` of Student's t (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for i in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * i / (i + 1)
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 - inside) / 2


@lru_cache(maxsize=512)
def _quantile(tail: float, degrees: int) -> float:
    """Return t with ``P(T > t) = tail``, by bisection."""
    low, high = 0.0, 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, degrees) > tail else (low, middle)
    return high


def rounding(*sides: Sequence[float]) -> float:
    """Return the largest error of the logarithm of a ratio that is due to the digits printed.

    Programs print few digits: 0.14 and 0.065 become 0.1. More rounds do not help, since all can be rounded alike.
    Floats have no trailing zeros, so the last digit is that of the most precise value.

    Args:
        sides: Values of the numerator and of the denominator as the program printed them, all positive; the
            values alone for the logarithm of one of them.
    """
    half = _half_digit([value for side in sides for value in side])
    return -math.fsum(math.log1p(-half / median(side)) for side in sides)


def enough(
    efficiencies: Sequence[Sequence[float]],
    target: float,
    *,
    rounds: int,
    precision: float | None = None,
    margins: Sequence[float] = (),
) -> Decision:
    """Decide whether a study stops after the rounds measured so far.

    It stops when one step is below the target with certainty (the study fails), when all steps reach it (the study
    passes), when every efficiency is known to ±0.5 % (too close to the target to distinguish), or when the rounds
    are spent.

    Args:
        efficiencies: Efficiencies of each scaled step, one per round.
        target: Efficiency to reach.
        rounds: Largest number of rounds.
        precision: Required half width of the intervals, relative to the efficiency; None requires none.
        margins: See ``rounding``, one for each step; by default 0.
    """
    import numpy as np

    done = min(map(len, efficiencies), default=0)
    after = f"after {done} round{'s' if done != 1 else ''}"
    if done >= rounds:
        return Decision(True, f"all {rounds} rounds were measured")
    if done < LEAST:
        return Decision(False, f"{after} of {rounds}: an interval requires {LEAST}")
    found = [
        interval(
            np.log(np.array(step[:done], dtype=float)).tolist(), steps=len(efficiencies), rounds=rounds, margin=margin
        )
        for step, margin in zip(efficiencies, margins or [0.0] * len(efficiencies), strict=True)
    ]
    intervals = [each for each in found if each]
    if len(intervals) < len(found):
        return Decision(
            True, f"all values for a step have exactly the same efficiency {after}; more rounds would not help"
        )
    goal = math.log(target)
    widths = [half_width(each) for each in intervals]
    narrow = [precision is None or width <= precision for width in widths]
    reasons = {
        f"an efficiency is below the target {after}": any(
            each.high < goal and known for each, known in zip(intervals, narrow, strict=True)
        ),
        f"every efficiency reaches the target {after}": all(
            each.low >= goal and known for each, known in zip(intervals, narrow, strict=True)
        ),
        f"every efficiency is known to ±{FINEST:.1%} {after}, and one is at the target": max(widths) <= FINEST,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    return Decision(why is not None, why or f"undecided {after}: the widest interval is ±{max(widths):.1%}")


def compare_rates(
    values: Sequence[float], default: Sequence[float], *, better: str, steps: int = 1, rounds: int | None = None
) -> tuple[float, Bounds | None]:
    """Return the logarithm of the typical rate of a setting relative to the default, and its interval.

    The interval is widened by half of the last digit of the values (see ``rounding``); ratios without spread have no
    other width. It is None for fewer than 3 rounds.

    Args:
        values: Values of the setting, one per round.
        default: Values of the default in the same rounds.
        better: ``higher``, or ``lower`` if the values are times.
        steps: Number of intervals that must hold together.
        rounds: See ``interval``.

    Raises:
        ValueError: If a value is not positive.
    """
    if min(*values, *default) <= 0:
        raise ValueError("values of 0 or less cannot be compared")
    sign = 1 if better == "higher" else -1
    logs = [sign * math.log(one / other) for one, other in zip(values, default, strict=True)]
    middle = typical(logs)
    if len(logs) < LEAST:
        return middle, None
    margin = rounding(values, default)
    found = interval(logs, steps=steps, rounds=rounds, margin=margin)
    return middle, found or Bounds(middle - margin, middle + margin)


def _half_digit(values: Sequence[float]) -> float:
    """Return half a unit of the last digit that any of the values has.

    Of at most 12 digits: 100 * 0.29 is 28.999999999999996.
    """
    digits = [Decimal(f"{value:.12g}").normalize().as_tuple().exponent for value in values]
    return float(10.0 ** min(0, *(digit for digit in digits if isinstance(digit, int)))) / 2


def compared_enough(
    settings: Sequence[Sequence[float]],
    default: Sequence[float],
    *,
    better: str,
    rounds: int,
    precision: float | None = None,
) -> Decision:
    """Decide whether a comparison of settings with a default stops after the rounds measured so far.

    It stops when every setting differs from the default with certainty, is below a winner or is known to
    ``precision``, or when the rounds are spent.

    Args:
        settings: Values of each setting, one per round.
        default: Values of the default.
        better: ``higher``, or ``lower`` if the values are times.
        rounds: Largest number of rounds.
        precision: Half width of an interval of a ratio below which a difference is too small to look for; None: ±2 %.
    """
    done = len(default)
    after = f"after {done} round{'s' if done != 1 else ''}"
    if done >= rounds:
        return Decision(True, f"all {rounds} rounds were measured")
    if done < LEAST:
        return Decision(False, f"{after} of {rounds}: an interval requires {LEAST}")
    compared = (compare_rates(each, default, better=better, steps=len(settings), rounds=rounds) for each in settings)
    found = [bounds for _, bounds in compared if bounds]
    limit = precision or SMALLEST
    won = max((each.low for each in found if each.low > 0), default=0.0)
    open_ = [each for each in found if each.low <= 0 and each.high >= won and half_width(each) > limit]
    if open_:
        widest = max(half_width(each) for each in open_)
        return Decision(
            False, f"undecided {after}: {len(open_)} of {len(settings)}, the widest interval is ±{widest:.1%}"
        )
    return Decision(True, f"every setting differs from the best or is known to ±{limit:.1%} {after}")


def rounds_needed(
    logs: Sequence[float], goal: float, *, steps: int = 1, rounds: int, margin: float = 0.0
) -> int | None:
    """Return the number of rounds that would probably settle a study that is looked at after every round.

    The spread and the typical value are assumed to stay as they are. None if ``rounds`` are not enough.

    Args:
        logs: Logarithms of the efficiencies so far, two or more.
        goal: Logarithm of the target.
        steps: Number of scaled steps.
        rounds: Largest number of rounds.
        margin: See ``interval``.
    """
    import numpy as np

    spread, distance = float(np.std(logs, ddof=1)), abs(typical(logs) - goal) - margin
    normal = NormalDist()
    for n in range(max(LEAST, len(logs) + 1), rounds + 1):
        multiple = _multiple(n, steps, rounds) or -normal.inv_cdf(_tail(n, rounds) / steps**_POWER_OF_TAIL)
        if multiple * spread / math.sqrt(n) <= distance:
            return n
    return None


def half_width(logs: Bounds) -> float:
    """Return half the width of an interval of logarithms, relative to its geometric centre."""
    half = (logs.high - logs.low) / 2
    return math.sinh(half) if half < _LARGEST else math.inf

"""Compare two samples by ranks: Mann-Whitney test, Hodges-Lehmann shift, Cliff's delta, Holm correction.

Ranks, because times of parallel programs have long tails, and a few nights do not show their distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.statistics import CONFIDENCE, Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Up to so many values in all, the distribution of the rank sum is counted out; beyond, it is all but normal.
EXACT_UP_TO = 60


@dataclass(frozen=True, slots=True)
class Shift:
    """How ``b`` differs from ``a``.

    ``p``: two-sided, of the hypothesis that both have one distribution. ``delta``: how much more often a value of ``b``
    exceeds one of ``a`` than the reverse, from -1 to 1 (Cliff 1993, Psychological Bulletin 114, 494-509). ``shift``:
    the median of all differences ``b - a``, with its 95 % ``interval``; None for too few values.
    """

    p: float
    delta: float
    shift: float
    interval: Interval | None


def compare_ranks(a: Sequence[float], b: Sequence[float], *, confidence: float = CONFIDENCE) -> Shift:
    """Compare two samples (Mann & Whitney 1947; Hodges & Lehmann 1963); ``ValueError`` if one is empty."""
    if not a or not b:
        raise ValueError("each side requires at least one value")
    differences = sorted(y - x for x in a for y in b)
    pairs = len(differences)
    above = sum(d > 0 for d in differences)
    below = sum(d < 0 for d in differences)
    return Shift(
        _p_value(a, b), (above - below) / pairs, median(differences), _interval(differences, len(a), confidence)
    )


def least_p(m: int, n: int) -> float:
    """Return the smallest possible two-sided p-value of ``m`` against ``n`` values: ``2 / (m+n choose m)``."""
    return min(1.0, 2 / math.comb(m + n, m))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, each adjusted for multiple tests (Holm 1979, Scand. J. Statist. 6, 65-70)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def describe_effect(delta: float) -> str:
    """Return the usual name of the size of a Cliff's delta (Romano et al. 2006)."""
    size = abs(delta)
    return next(
        (word for limit, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")) if size < limit), "large"
    )


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    doubled = _doubled_ranks([*a, *b])
    observed = sum(doubled[: len(a)])
    if len(doubled) <= EXACT_UP_TO:
        counts = _rank_sums(tuple(doubled), len(a))
        total = counts.sum()
        return min(1.0, 2 * float(min(counts[: observed + 1].sum(), counts[observed:].sum()) / total))
    m, n, size = len(a), len(b), len(doubled)
    mean = m * (size + 1)
    variance = m * n / (size * (size - 1)) * sum((rank - (size + 1)) ** 2 for rank in doubled)
    if variance == 0:
        return 1.0
    z = max(0.0, abs(observed - mean) - 1) / math.sqrt(variance)
    return 2 * (1 - NormalDist().cdf(z))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value: an integer, since ties share the average of their ranks."""
    ordered = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: i for i, value in enumerate(ordered, 1)}
    return [first[value] + last[value] for value in values]


@lru_cache(maxsize=256)
def _rank_sums(doubled: tuple[int, ...], m: int) -> NDArray[Any]:
    """Return how many choices of ``m`` of these ranks have each sum, with ties (Streitberg & Röhmel 1986, Computational
    Statistics Quarterly 3, 23-41).
    """
    import numpy as np

    counts = np.zeros((m + 1, sum(doubled) + 1))
    counts[0, 0] = 1
    for rank in doubled:
        counts[1:, rank:] = counts[1:, rank:] + counts[:-1, : counts.shape[1] - rank]
    sums: NDArray[Any] = counts[m]
    return sums


def _interval(differences: Sequence[float], m: int, confidence: float) -> Interval | None:
    """Return the shifts that the test would not reject: all but the ``k`` least and greatest differences."""
    n = len(differences) // m
    k = _left_out(m, n, confidence)
    return Interval(differences[k - 1], differences[-k]) if k else None


@lru_cache(maxsize=256)
def _left_out(m: int, n: int, confidence: float) -> int:
    """Return the largest k with P(U < k) <= (1 - confidence) / 2; 0 if there is none."""
    tail = (1 - confidence) / 2
    if m + n > EXACT_UP_TO:
        z = NormalDist().inv_cdf(1 - tail)
        return max(0, math.floor(m * n / 2 - z * math.sqrt(m * n * (m + n + 1) / 12)))
    counts = _rank_sums(tuple(2 * rank for rank in range(1, m + n + 1)), m)[m * (m + 1) :: 2]
    return int((counts.cumsum() / counts.sum() <= tail).sum())

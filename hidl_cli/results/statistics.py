"""What can be said about a mean from a handful of noisy repetitions: an interval that holds for n = 3 to 10."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95  # of every interval that hidl prints
MIN_REPETITIONS = 3  # two values have a spread, but no shape to resample
RESAMPLES = 4000  # the half width is then known to about 2 %
SAME = 1e-12  # logarithms that differ by less are equal but for rounding


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, ends included."""

    low: float
    high: float


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Return the 95 % confidence interval of the mean of ``values``, symmetric about their average.

    None where the values cannot give one: fewer than 3, or no spread at all, which says nothing about the noise.
    The order of the values does not matter, and the same values always give the same interval.
    """
    import numpy as np

    if len(values) < MIN_REPETITIONS or max(values) - min(values) < SAME:
        return None
    mean = fmean(values)
    half = float(mean_half_widths(np.array([values]), seed=seed)[0])
    return Interval(mean - half, mean + half)


def mean_half_widths(samples: NDArray[Any], *, seed: int = 0) -> NDArray[Any]:
    """Return the half width of the 95 % interval of the mean of each row of ``samples`` (rows, n): (rows,).

    The interval is the symmetric bootstrap-t one, ``mean ± t*·s/√n`` with ``t*`` the 95 % quantile of
    ``|mean' - mean|·√n/s'`` over resamples (Efron & Tibshirani 1993, An Introduction to the Bootstrap, section 12.5;
    Hall 1988, J. R. Statist. Soc. B 50, 35-45). With few values a resample can hold one of them n times (``s' = 0``),
    so the resamples are smoothed (Polansky 2000, Canadian Journal of Statistics 28, 501-516) by Gaussian noise of
    width ``s/√n`` (Hesterberg 2004, Bootknife sampling vs. smoothing). n must be 2 or more, and no row constant.
    """
    import numpy as np

    n = samples.shape[1]
    random = np.random.default_rng(seed)
    picked = random.integers(0, n, size=(RESAMPLES, n))
    smoothing = random.standard_normal((RESAMPLES, n)) / math.sqrt(n)

    spread = samples.std(axis=1, ddof=1)
    standardised = np.sort((samples - samples.mean(axis=1, keepdims=True)) / spread[:, None], axis=1)
    resampled = standardised[:, picked] + smoothing  # (rows, resamples, n)
    t = np.abs(resampled.mean(axis=2)) * math.sqrt(n) / resampled.std(axis=2, ddof=1)
    half_widths: NDArray[Any] = np.quantile(t, CONFIDENCE, axis=1) * spread / math.sqrt(n)
    return half_widths


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation over the average of positive ``values``; None for a single one."""
    return stdev(values) / fmean(values) if len(values) > 1 else None


def repetitions_needed(spread: float, margin: float) -> int:
    """Return how many repetitions tell a mean from a value that lies ``margin`` away, four times out of five.

    ``spread`` is the standard deviation of one repetition, in the unit of ``margin`` (> 0). Normal approximation with
    the correction for an estimated spread: Guenther 1981, The American Statistician 35, 243-244.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return math.ceil(((z + NormalDist().inv_cdf(0.8)) * spread / margin) ** 2 + z**2 / 2)

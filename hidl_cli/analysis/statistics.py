"""Intervals for differences between means, and other statistics of small, noisy samples (n = 3 to 10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any

from hidl_workloads.repetitions import LEAST as MIN_REPETITIONS
from hidl_workloads.repetitions import SAME

__all__ = ["MIN_REPETITIONS", "SAME"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95  # for intervals of differences and changes
RESAMPLES = 4000  # enough for a half-width with an error of about 2 %


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed confidence interval."""

    low: float
    high: float


def difference_interval(
    values: Sequence[float], others: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval | None:
    """Return the confidence interval of the difference between the means of two independent samples.

    The interval is the symmetric bootstrap-t interval (Efron & Tibshirani 1993, An Introduction to the Bootstrap,
    section 12.5; Hall 1988, J. R. Statist. Soc. B 50, 35-45) with Welch's standard error ``√(s1²/n1 + s2²/n2)``. With
    few values, a resample can consist of a single value repeated. The resamples are therefore smoothed (Polansky 2000,
    Canadian Journal of Statistics 28, 501-516) with Gaussian noise of width ``s/√n`` (Hesterberg 2004, Bootknife vs.
    smoothing). Returns None if either sample has fewer than 3 values, or if all its values are equal.
    """
    import numpy as np

    samples = [np.array(sample, dtype=float) for sample in (values, others)]
    if any(len(sample) < MIN_REPETITIONS or np.ptp(sample) < SAME for sample in samples):
        return None
    random = np.random.default_rng(seed)
    means, variances = zip(*(_resampled(sample, random) for sample in samples), strict=True)
    t = np.abs(means[0] - means[1]) / np.sqrt(variances[0] + variances[1])
    error = math.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in samples))
    half = float(np.quantile(t, confidence)) * error
    difference = float(samples[0].mean() - samples[1].mean())
    return Interval(difference - half, difference + half)


def _resampled(sample: NDArray[Any], random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the deviations of resampled means from the sample's mean, and their squared standard errors."""
    n, spread = len(sample), sample.std(ddof=1)
    ordered = (sample - sample.mean())[sample.argsort()]
    resampled = ordered[random.integers(0, n, size=(RESAMPLES, n))]
    resampled = resampled + random.standard_normal((RESAMPLES, n)) * spread / math.sqrt(n)
    return resampled.mean(axis=1), resampled.var(axis=1, ddof=1) / n


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation of positive ``values`` divided by their mean, or None for a single value."""
    return stdev(values) / fmean(values) if len(values) > 1 else None


def repetitions_needed(spread: float, margin: float, *, confidence: float = CONFIDENCE) -> int:
    """Return the number of repetitions required to detect that a mean is ``margin`` away from a value, with 80 % power.

    Uses the normal approximation with a correction for the estimated spread (Guenther 1981, The American Statistician
    35, 243-244).

    Args:
        spread: Standard deviation of one repetition.
        margin: Distance to detect, in the unit of ``spread``; must be positive.
        confidence: Confidence level.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(((z + NormalDist().inv_cdf(0.8)) * spread / margin) ** 2 + z**2 / 2)

"""Confidence intervals of means from a few noisy repetitions, valid for n = 3 to 10."""

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

CONFIDENCE = 0.95  # of every interval that hidl prints, except for studies of several steps
RESAMPLES = 4000  # the half width is then known to about 2 %


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, ends included."""

    low: float
    high: float


def half_widths(samples: NDArray[Any], confidence: float, *, seed: int = 0) -> NDArray[Any]:
    """Return the half width of the interval of the mean of each row of ``samples`` (rows, n): (rows,).

    The interval is the symmetric bootstrap-t one, ``mean ± t*·s/√n`` with ``t*`` the quantile of
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
    widths: NDArray[Any] = np.quantile(t, confidence, axis=1) * spread / math.sqrt(n)
    return widths


def mean_interval(values: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval | None:
    """Return the confidence interval of the mean of ``values``, symmetric about their average.

    None for fewer than 3 values, or values without spread, which say nothing about the noise. The order of the values
    does not matter, and the same values always give the same interval.
    """
    import numpy as np

    if len(values) < MIN_REPETITIONS or max(values) - min(values) < SAME:
        return None
    mean = fmean(values)
    half = float(half_widths(np.array([values]), confidence, seed=seed)[0])
    return Interval(mean - half, mean + half)


def difference_interval(
    values: Sequence[float], others: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval | None:
    """Return the confidence interval of the mean of ``values`` minus that of ``others``, two independent samples.

    As ``mean_interval``, with Welch's standard error, ``√(s1²/n1 + s2²/n2)``, instead of ``s/√n``. None if one of them
    has fewer than 3 values, or no spread.
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
    """Return the means of smoothed resamples minus the sample's own, and the squares of their standard errors."""
    n, spread = len(sample), sample.std(ddof=1)
    ordered = (sample - sample.mean())[sample.argsort()]
    resampled = ordered[random.integers(0, n, size=(RESAMPLES, n))]
    resampled = resampled + random.standard_normal((RESAMPLES, n)) * spread / math.sqrt(n)
    return resampled.mean(axis=1), resampled.var(axis=1, ddof=1) / n


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation divided by the average of positive ``values``; None for a single value."""
    return stdev(values) / fmean(values) if len(values) > 1 else None


def repetitions_needed(spread: float, margin: float, *, confidence: float = CONFIDENCE) -> int:
    """Return how many repetitions distinguish a mean from a value ``margin`` away with a power of 80 %.

    ``spread``: the standard deviation of one repetition, in the unit of ``margin`` (> 0). Normal approximation with the
    correction for an estimated spread: Guenther 1981, The American Statistician 35, 243-244.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(((z + NormalDist().inv_cdf(0.8)) * spread / margin) ** 2 + z**2 / 2)

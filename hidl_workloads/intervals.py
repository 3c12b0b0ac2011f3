"""The mean of some samples and its 95 % confidence interval, without scipy (no stack installs it for this)."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The 0.975 quantiles of Student's t with few degrees of freedom, for which the expansion below is too inaccurate.
_T_FEW = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463}
_Z = 1.959963984540054  # the 0.975 quantile of the normal distribution


def mean(samples: Sequence[float]) -> float:
    """Return the arithmetic mean; raises ``ZeroDivisionError`` for no samples."""
    return math.fsum(samples) / len(samples)


def half_width(samples: Sequence[float]) -> float:
    """Half the width of the mean's 95 % confidence interval: ``t(0.975, n-1) * s / sqrt(n)``, in the samples' unit.

    ``s`` is the standard deviation with ``n - 1``; independent, normally distributed samples are assumed. One sample
    has no interval: the answer is ``inf``.
    """
    n = len(samples)
    if n < 2:
        return math.inf
    center = mean(samples)
    variance = math.fsum((sample - center) ** 2 for sample in samples) / (n - 1)
    return student_t(n - 1) * math.sqrt(variance / n)


def student_t(degrees: int) -> float:
    """Return the 0.975 quantile of Student's t, within 0.04 %.

    The expansion in powers of 1/degrees is Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if degrees in _T_FEW:
        return _T_FEW[degrees]
    z, v = _Z, 1 / degrees
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + v * (g1 + v * (g2 + v * (g3 + v * g4)))

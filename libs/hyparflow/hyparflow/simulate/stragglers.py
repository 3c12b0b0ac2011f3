"""Nodes that are slow now and then: a step ends with the slowest of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Stragglers:
    """How the time of one node's step varies, as shares of it.

    `jitter` is the standard deviation of a normal variation that every node has in every step. With `probability` a
    node is hit besides by something rare (the kernel, a file system, a hot processor) that takes `delay` of a step.
    """

    jitter: float = 0.0
    probability: float = 0.0
    delay: float = 0.0

    def expected_maximum(self, nodes: int) -> float:
        """The expected time of the slowest of `nodes` independent nodes, in units of an undisturbed step.

        The integral of 1 - F(x)^nodes, F the distribution of one node's time.
        """
        rare = self.probability * self.delay
        if self.jitter <= 0:
            return 1.0 + self.delay * (1 - (1 - self.probability) ** nodes) if rare else 1.0
        low, high = 1 - 12 * self.jitter, 1 + self.delay + 12 * self.jitter
        x = np.linspace(low, high, 20_001)
        one = (1 - self.probability) * _normal((x - 1) / self.jitter)
        one += self.probability * _normal((x - 1 - self.delay) / self.jitter)
        beyond = 1 - one**nodes
        step = (high - low) / (len(x) - 1)
        return float(low + step * (beyond.sum() - (beyond[0] + beyond[-1]) / 2))


def _normal(x: Any) -> Any:
    """The normal distribution function, by the complementary error function of Abramowitz and Stegun 7.1.26."""
    z = np.abs(x) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    upper = series * np.exp(-z * z) / 2
    return np.where(x < 0, upper, 1 - upper)

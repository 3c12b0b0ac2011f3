"""Rank the points of a matrix: the same program with different parameters, interleaved in one allocation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

from hidl_cli.analysis.statistics import Interval, coefficient_of_variation, mean_interval
from hidl_cli.plan.parameters import format_parameters

WRONG = 0.05  # of the rankings without any difference may call one


@dataclass(frozen=True, slots=True)
class Entry:
    """One point. ``mean``: the geometric mean of its ``repetitions``, ``variation``: their coefficient of variation.

    ``relative``: compared with the best, 1 for the best itself, 0.8 for 4/5 of its rate or 5/4 of its time;
    ``interval``: that of ``relative``, None for too few repetitions.
    """

    point: Mapping[str, bool | int | float | str]
    repetitions: int
    mean: float
    variation: float | None
    relative: float
    interval: Interval | None

    @property
    def is_behind(self) -> bool:
        """Is it worse than the best by more than the noise?"""
        return self.interval is not None and self.interval.high < 1


@dataclass(frozen=True, slots=True)
class Ranking:
    """The points in the order in which they ran. ``confidence``: that of each interval."""

    metric: str
    unit: str
    better: str
    confidence: float
    entries: tuple[Entry, ...]

    @property
    def best(self) -> Entry:
        """The best point."""
        return max(self.entries, key=lambda entry: entry.relative)

    @property
    def reason(self) -> str:
        """The result in a sentence."""
        best, metric = self.best, self.metric
        others = sorted((e for e in self.entries if e is not best), key=lambda entry: -entry.relative)
        tied = [format_parameters(entry.point) for entry in others if not entry.is_behind]
        if tied:
            alike = ", ".join(tied)
            return f"{format_parameters(best.point)} is best in {metric}, within the noise of {alike}"
        second = others[0]
        compared = f"{format_parameters(second.point)} reaches {second.relative:.3f} of it"
        return f"{format_parameters(best.point)} is best in {metric}; {compared}"


def rank(metric: str, unit: str, better: str, values: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> Ranking:
    """Rank two points or more by their positive values, round by round; ``better``: ``higher`` or ``lower``.

    The points of one round ran one after another, so what slows a whole round cancels in their ratio: the interval is
    that of the mean logarithm of these ratios (``mean_interval``), corrected for the number of comparisons
    (Bonferroni). Raises ``ValueError`` for points with different numbers of values, or values that are not positive.
    """
    if len({len(found) for _, found in values}) != 1 or any(value <= 0 for _, found in values for value in found):
        raise ValueError("each point requires the same number of values, all positive")
    sign = 1 if better == "higher" else -1
    logs = [[sign * math.log(value) for value in found] for _, found in values]
    best = max(logs, key=math.fsum)
    confidence = 1 - WRONG / max(1, len(values) - 1)
    entries = []
    for (point, found), its in zip(values, logs, strict=True):
        ratios = [one - other for one, other in zip(its, best, strict=True)]
        interval = None if its is best else mean_interval(ratios, confidence=confidence)
        entries.append(
            Entry(
                point=point,
                repetitions=len(found),
                mean=geometric_mean(found),
                variation=coefficient_of_variation(found),
                relative=math.exp(math.fsum(ratios) / len(ratios)),
                interval=interval and Interval(math.exp(interval.low), math.exp(interval.high)),
            )
        )
    return Ranking(metric, unit, better, confidence, tuple(entries))


def to_json(ranking: Ranking) -> dict[str, Any]:
    """Return the ranking as plain data."""
    return {**asdict(ranking), "best": dict(ranking.best.point)}

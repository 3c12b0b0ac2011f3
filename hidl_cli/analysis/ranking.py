"""Rank the points of a sweep, and compare benchmarks in C and Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

from hidl_cli.analysis.statistics import SAME, Interval, coefficient_of_variation
from hidl_cli.plan.parameters import format_parameters
from hidl_workloads.repetitions import LEAST, WRONG, compare_rates, confidence, rounding

_SIMULATED = 20_000  # number of simulated rankings of equal points, from which the width of the intervals is derived
_LEAST_SIMULATED, _MOST_VALUES = 2_000, 4_000_000


@dataclass(frozen=True, slots=True)
class RankedPoint:
    """One point of a ranking.

    Attributes:
        mean: Geometric mean of the repetitions.
        variation: Coefficient of variation of the repetitions.
        relative: Performance relative to the reference (the default or the best point): 0.8 means 4/5 of its rate or
            5/4 of its time.
        interval: Confidence interval of ``relative``, or None for the reference and if there are too few repetitions.
    """

    point: Mapping[str, bool | int | float | str]
    repetitions: int
    mean: float
    variation: float | None
    relative: float
    interval: Interval | None

    @property
    def is_behind(self) -> bool:
        """True if the point is worse than the reference by more than the noise."""
        return self.interval is not None and self.interval.high < 1

    @property
    def is_ahead(self) -> bool:
        """True if the point is better than the reference by more than the noise."""
        return self.interval is not None and self.interval.low > 1


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking of points, which ``entries`` contains in the order in which they ran.

    Attributes:
        confidence: Confidence level of each interval, or of all intervals together if they are relative to the best
            point.
        default: Point with which the others are compared; if None, they are compared with the best one.
        size: Message size of the values in bytes, or None if the metric has no sizes.
        worse_at: Message sizes at which the winner is worse than the default.
    """

    metric: str
    unit: str
    better: str
    confidence: float
    entries: tuple[RankedPoint, ...]
    default: Mapping[str, bool | int | float | str] | None = None
    size: int | None = None
    worse_at: tuple[int, ...] = ()

    @property
    def best(self) -> RankedPoint:
        """The best point."""
        return max(self.entries, key=lambda entry: entry.relative)

    @property
    def winner(self) -> RankedPoint | None:
        """The best point that is better than the default by more than the noise, or None."""
        ahead = [entry for entry in self.entries if self.default is not None and entry.is_ahead]
        return max(ahead, key=lambda entry: entry.relative, default=None)

    @property
    def reason(self) -> str:
        """A one-sentence summary of the result."""
        if self.default is not None:
            return self._summary_with_default()
        best, metric = self.best, self.metric
        others = sorted((e for e in self.entries if e is not best), key=lambda entry: -entry.relative)
        tied = [format_parameters(entry.point) for entry in others if not entry.is_behind]
        if tied:
            return f"{format_parameters(best.point)} is best in {metric}, but may be equal to {', '.join(tied)}"
        second = others[0]
        compared = f"{format_parameters(second.point)} reaches {second.relative:.3f} of it"
        return f"{format_parameters(best.point)} is best in {metric}; {compared}"

    def _summary_with_default(self) -> str:
        others = [entry for entry in self.entries if entry.point != self.default]
        if self.winner is not None:
            worse = ", ".join(f"{size} B" for size in self.worse_at)
            return f"{format_parameters(self.winner.point)}: {self.gain}" + (f", but worse at {worse}" if worse else "")
        if behind := [entry for entry in others if entry.is_behind]:
            listed = ", ".join(f"{format_parameters(entry.point)} ({self._change(entry.relative)})" for entry in behind)
            rest = "" if len(behind) == len(others) else "; no other differences found"
            return f"no setting is better than the default in {self._metric_at_size}; worse: {listed}{rest}"
        intervals = [entry.interval for entry in others if entry.interval is not None]
        if len(intervals) < len(others):
            return f"no difference found in {self._metric_at_size}: an interval requires {LEAST} repetitions"
        most = max(max(each.high, 1 / each.low) for each in intervals) - 1
        if most > 1:
            return f"no difference found in {self._metric_at_size}: too noisy to exclude a factor of 2"
        return f"no difference found in {self._metric_at_size} (less than {most:.1%})"

    @property
    def _metric_at_size(self) -> str:
        return self.metric if self.size is None else f"{self.metric} at {self.size} B"

    @property
    def gain(self) -> str:
        """A description of the winner's improvement over the default, with its interval."""
        if self.winner is None or self.winner.interval is None:
            raise ValueError("no winner")
        low, high = (f"{self._gain(end):.1%}" for end in astuple(self.winner.interval))
        return f"{self.gain_in_short} than with the default ({low} to {high})"

    @property
    def gain_in_short(self) -> str:
        """A description of the winner's improvement over the default."""
        if self.winner is None:
            raise ValueError("no winner")
        change = "higher" if self.better == "higher" else "lower"
        return f"{self._metric_at_size} {self._gain(self.winner.relative):.1%} {change}"

    def _gain(self, relative: float) -> float:
        """Return the improvement of the metric as a fraction of the default."""
        return relative - 1 if self.better == "higher" else 1 - 1 / relative

    def _change(self, relative: float) -> str:
        change = relative - 1 if self.better == "higher" else 1 / relative - 1
        return f"{change:+.1%}"


def rank(metric: str, unit: str, better: str, values: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> Ranking:
    """Rank two or more points by comparing their values within each round.

    The points of a round ran one after another, so slowdowns of a whole round cancel in their ratios. The intervals are
    those of the mean logarithms of these ratios, ``mean ± c·s/√n``, widened by half a unit in the last digit of the
    values (``repetitions.rounding``). All of them hold simultaneously with the confidence of the ranking, although the
    best point is selected by the same values (see ``_multiple``).

    Args:
        metric: Name of the metric.
        unit: Unit of the values.
        better: ``higher`` or ``lower``.
        values: Points with one positive value per round.

    Raises:
        ValueError: If the points have different numbers of values, or a value is not positive.
    """
    logs = _logarithms(better, values)
    best = max(logs, key=math.fsum)
    entries = []
    for (point, found), its_logs in zip(values, logs, strict=True):
        ratios = [one - other for one, other in zip(its_logs, best, strict=True)]
        mean, bounds = fmean(ratios), None
        if its_logs is not best and len(ratios) >= LEAST and max(ratios) - min(ratios) >= SAME:
            half = _multiple(len(values), len(ratios)) * stdev(ratios) / math.sqrt(len(ratios))
            half += rounding(found, values[logs.index(best)][1])
            bounds = Interval(mean - half, mean + half)
        entries.append(_entry(point, found, mean, bounds))
    return Ranking(metric, unit, better, 1 - WRONG, tuple(entries))


@lru_cache(maxsize=64)
def _multiple(points: int, rounds: int) -> float:
    """Return the multiple of the standard error that equal points exceed in only a fraction ``WRONG`` of rankings.

    The multiple is simulated with normal noise. The best of equal points is the highest by chance, so correcting for
    the number of comparisons is not sufficient: with 8 points and 20 rounds, 10 % instead of 5 % of rankings reported a
    difference.
    """
    import numpy as np

    count = max(_LEAST_SIMULATED, min(_SIMULATED, _MOST_VALUES // (points * rounds)))
    values = np.random.default_rng(0).standard_normal((count, points, rounds))
    best = values.mean(axis=2).argmax(axis=1)
    behind = values[np.arange(count), best][:, None, :] - values
    behind = behind[np.arange(points) != best[:, None]].reshape(count, points - 1, rounds)
    distances = behind.mean(axis=2) / behind.std(axis=2, ddof=1) * math.sqrt(rounds)
    return float(np.quantile(distances.max(axis=1), 1 - WRONG))


def compare(
    metric: str,
    unit: str,
    better: str,
    values: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    *,
    rounds: int | None = None,
) -> Ranking:
    """Compare the values of each point, round by round, with those of the first point (the default).

    The intervals cover the typical ratios (``hidl_workloads.repetitions``) of all comparisons simultaneously.

    Args:
        metric: Name of the metric.
        unit: Unit of the values.
        better: ``higher`` or ``lower``.
        values: Points with one positive value per round.
        rounds: Maximum number of rounds, if the results are checked after every round; None for a single check.

    Raises:
        ValueError: If the points have different numbers of values, or a value is not positive.
    """
    if len({len(found) for _, found in values}) != 1:
        raise ValueError("each point requires the same number of values")
    (reference, default), *others = values
    entries = [_entry(reference, default, 0.0, None)]
    for point, found in others:
        relative, bounds = compare_rates(found, default, better=better, steps=len(others), rounds=rounds)
        entries.append(_entry(point, found, relative, bounds and Interval(*bounds)))
    return Ranking(metric, unit, better, confidence(len(others), rounds or len(default)), tuple(entries), reference)


def _logarithms(better: str, values: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> list[list[float]]:
    if len({len(found) for _, found in values}) != 1 or any(value <= 0 for _, found in values for value in found):
        raise ValueError("each point requires the same number of values, all positive")
    sign = 1 if better == "higher" else -1
    return [[sign * math.log(value) for value in found] for _, found in values]


def _entry(point: Mapping[str, Any], found: Sequence[float], relative: float, logs: Interval | None) -> RankedPoint:
    return RankedPoint(
        point=point,
        repetitions=len(found),
        mean=geometric_mean(found),
        variation=coefficient_of_variation(found),
        relative=math.exp(relative),
        interval=logs and Interval(math.exp(logs.low), math.exp(logs.high)),
    )


def to_json(ranking: Ranking) -> dict[str, Any]:
    """Return the ranking as a JSON-serializable dictionary."""
    found = {**asdict(ranking), "best": dict(ranking.best.point)}
    if ranking.default is None:
        return {key: value for key, value in found.items() if key not in ("default", "size", "worse_at")}
    winner = ranking.winner
    return {**found, "winner": winner and dict(winner.point), "gain": winner and ranking.gain_in_short}


# The overhead of Python: the same benchmark in C and in Python, interleaved in one allocation and compared by message
# size.


#: The workload parameter that selects the implementation (C or Python), and its two values.
SUITE, C, PYTHON = "suite", "c", "python"


@dataclass(frozen=True)
class Row:
    """The medians over the repetitions at one message size. ``size`` is in bytes, or None if there are no sizes."""

    size: int | None
    c: float
    python: float

    @property
    def difference(self) -> float:
        """The amount that Python adds, in the metric's unit."""
        return self.python - self.c

    @property
    def relative(self) -> float | None:
        """The difference relative to the C value, or None if that value is 0."""
        return self.difference / self.c if self.c else None


@dataclass(frozen=True)
class Overhead:
    """The overhead of Python for one metric; ``point`` contains the other swept parameters."""

    metric: str
    unit: str
    point: str
    rows: tuple[Row, ...]


def overheads(steps: Sequence[Mapping[str, Any]]) -> tuple[Overhead, ...]:
    """Return a run's Python overheads, or an empty tuple unless it ran the benchmarks in both C and Python.

    Metrics and sizes measured by only one suite are excluded. ``steps`` has the form of metrics.json.
    """
    points: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        parameters = step.get("parameters", {})
        if parameters.get(SUITE) in (C, PYTHON):
            others = format_parameters({name: value for name, value in parameters.items() if name != SUITE})
            points.setdefault(others, []).append(step)
    return tuple(found for point, steps_of_point in points.items() for found in _of_point(point, steps_of_point))


def _of_point(point: str, steps: Sequence[Mapping[str, Any]]) -> Iterator[Overhead]:
    metrics = {name: found["unit"] for step in steps for name, found in step["metrics"].items()}
    for name, unit in metrics.items():
        by_suite = {suite: _medians(name, steps, suite) for suite in (C, PYTHON)}
        both = [size for size in by_suite[C] if size in by_suite[PYTHON]]
        if both:
            rows = tuple(Row(size, by_suite[C][size], by_suite[PYTHON][size]) for size in both)
            yield Overhead(name, unit, point, rows)


def _medians(metric: str, steps: Sequence[Mapping[str, Any]], suite: str) -> dict[int | None, float]:
    """Return the median over the repetitions, by message size."""
    values: dict[int | None, list[float]] = {}
    for step in steps:
        found = step["metrics"].get(metric)
        if step["parameters"][SUITE] != suite or found is None:
            continue
        sizes = found.get("sizes") or [None]
        for size, value in zip(sizes, found["samples"] if found.get("sizes") else [found["value"]], strict=True):
            if isinstance(value, (int, float)):
                values.setdefault(size, []).append(float(value))
    return {size: median(each) for size, each in values.items()}

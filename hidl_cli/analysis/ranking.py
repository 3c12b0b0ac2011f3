"""Rank the points of a matrix: the same program with different parameters, interleaved in one allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from statistics import geometric_mean, median
from typing import Any

from hidl_cli.analysis.statistics import Interval, coefficient_of_variation, mean_interval
from hidl_cli.plan.parameters import format_parameters
from hidl_workloads.repetitions import LEAST, compare_rates, confidence, rounding

WRONG = 0.05  # of the rankings without any difference may call one


@dataclass(frozen=True, slots=True)
class Entry:
    """One point. ``mean``: the geometric mean of its ``repetitions``, ``variation``: their coefficient of variation.

    ``relative``: compared with the best or the default, 1 for that itself, 0.8 for 4/5 of its rate or 5/4 of its time;
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
        """Is it worse than the best or the default by more than the noise?"""
        return self.interval is not None and self.interval.high < 1

    @property
    def is_ahead(self) -> bool:
        """Is it better than the default by more than the noise?"""
        return self.interval is not None and self.interval.low > 1


@dataclass(frozen=True, slots=True)
class Ranking:
    """The points in the order in which they ran. ``confidence``: that of each interval.

    ``default``: the point that the others are compared with; None: the best of them. ``size``: the message size of the
    values, in bytes; None: the metric has none. ``worse_at``: the sizes at which the winner is worse than the default.
    """

    metric: str
    unit: str
    better: str
    confidence: float
    entries: tuple[Entry, ...]
    default: Mapping[str, bool | int | float | str] | None = None
    size: int | None = None
    worse_at: tuple[int, ...] = ()

    @property
    def best(self) -> Entry:
        """The best point."""
        return max(self.entries, key=lambda entry: entry.relative)

    @property
    def winner(self) -> Entry | None:
        """The best point of those that are better than the default by more than the noise."""
        ahead = [entry for entry in self.entries if self.default is not None and entry.is_ahead]
        return max(ahead, key=lambda entry: entry.relative, default=None)

    @property
    def reason(self) -> str:
        """The result in a sentence."""
        if self.default is not None:
            return self._compared_with_the_default()
        best, metric = self.best, self.metric
        others = sorted((e for e in self.entries if e is not best), key=lambda entry: -entry.relative)
        tied = [format_parameters(entry.point) for entry in others if not entry.is_behind]
        if tied:
            alike = ", ".join(tied)
            return f"{format_parameters(best.point)} is best in {metric}, within the noise of {alike}"
        second = others[0]
        compared = f"{format_parameters(second.point)} reaches {second.relative:.3f} of it"
        return f"{format_parameters(best.point)} is best in {metric}; {compared}"

    def _compared_with_the_default(self) -> str:
        others = [entry for entry in self.entries if entry.point != self.default]
        if self.winner is not None:
            worse = ", ".join(f"{size} B" for size in self.worse_at)
            return f"{format_parameters(self.winner.point)}: {self.gain}" + (f", but worse at {worse}" if worse else "")
        if behind := [entry for entry in others if entry.is_behind]:
            listed = ", ".join(f"{format_parameters(entry.point)} ({self._change(entry.relative)})" for entry in behind)
            rest = "" if len(behind) == len(others) else "; no other difference found"
            return f"no setting is better than the default in {self._what}; worse: {listed}{rest}"
        intervals = [entry.interval for entry in others if entry.interval is not None]
        if len(intervals) < len(others):
            return f"no difference found in {self._what}: an interval requires {LEAST} repetitions"
        most = max(max(each.high, 1 / each.low) for each in intervals) - 1
        if most > 1:
            return f"no difference found in {self._what}: the repetitions differ too much to exclude a factor of 2"
        return f"no difference found in {self._what} (less than {most:.1%})"

    @property
    def _what(self) -> str:
        return self.metric if self.size is None else f"{self.metric} at {self.size} B"

    @property
    def gain(self) -> str:
        """How much better the winner is than the default, with its interval."""
        if self.winner is None or self.winner.interval is None:
            raise ValueError("no winner")
        low, high = (f"{self._gain(end):.1%}" for end in astuple(self.winner.interval))
        return f"{self.gain_in_short} than with the default ({low} to {high})"

    @property
    def gain_in_short(self) -> str:
        """How much better the winner is than the default."""
        if self.winner is None:
            raise ValueError("no winner")
        change = "higher" if self.better == "higher" else "lower"
        return f"{self._what} {self._gain(self.winner.relative):.1%} {change}"

    def _gain(self, relative: float) -> float:
        """Return by how much the metric rises, or falls if lower is better, relative to the default."""
        return relative - 1 if self.better == "higher" else 1 - 1 / relative

    def _change(self, relative: float) -> str:
        change = relative - 1 if self.better == "higher" else 1 / relative - 1
        return f"{change:+.1%}"


def rank(metric: str, unit: str, better: str, values: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> Ranking:
    """Rank two points or more by their positive values, round by round; ``better``: ``higher`` or ``lower``.

    The points of one round ran one after another, so what slows a whole round cancels in their ratio: the interval is
    that of the mean logarithm of these ratios (``mean_interval``), corrected for the number of comparisons
    (Bonferroni) and widened by half of the last digit of the values (``repetitions.rounding``). Raises ``ValueError``
    for points with different numbers of values, or values that are not positive.
    """
    logs = _logarithms(better, values)
    best = max(logs, key=math.fsum)
    level = 1 - WRONG / max(1, len(values) - 1)
    entries = []
    for (point, found), its in zip(values, logs, strict=True):
        ratios = [one - other for one, other in zip(its, best, strict=True)]
        bounds = None if its is best else mean_interval(ratios, confidence=level)
        if bounds:
            margin = rounding(found, values[logs.index(best)][1])
            bounds = Interval(bounds.low - margin, bounds.high + margin)
        entries.append(_entry(point, found, math.fsum(ratios) / len(ratios), bounds))
    return Ranking(metric, unit, better, level, tuple(entries))


def compare(
    metric: str,
    unit: str,
    better: str,
    values: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    *,
    rounds: int | None = None,
) -> Ranking:
    """Compare points with the first one, the default, by their positive values, round by round.

    The interval covers the typical ratio (``hidl_workloads.repetitions``), for all comparisons together.

    Args:
        metric: Name of the metric.
        unit: Its unit.
        better: ``higher`` or ``lower``.
        values: Points with one value per round.
        rounds: Largest number of rounds of a run that is looked at after every round; None for a single look.

    Raises:
        ValueError: For points with different numbers of values, or values that are not positive.
    """
    if len({len(found) for _, found in values}) != 1:
        raise ValueError("each point requires the same number of values")
    (reference, default), *others = values
    entries = [_entry(reference, default, 0.0, None)]
    for point, found in others:
        relative, bounds = compare_rates(found, default, better=better, steps=len(others), rounds=rounds)
        entries.append(_entry(point, found, relative, bounds and Interval(*bounds)))
    return Ranking(metric, unit, better, confidence(len(others)), tuple(entries), reference)


def _logarithms(better: str, values: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> list[list[float]]:
    if len({len(found) for _, found in values}) != 1 or any(value <= 0 for _, found in values for value in found):
        raise ValueError("each point requires the same number of values, all positive")
    sign = 1 if better == "higher" else -1
    return [[sign * math.log(value) for value in found] for _, found in values]


def _entry(point: Mapping[str, Any], found: Sequence[float], relative: float, logs: Interval | None) -> Entry:
    return Entry(
        point=point,
        repetitions=len(found),
        mean=geometric_mean(found),
        variation=coefficient_of_variation(found),
        relative=math.exp(relative),
        interval=logs and Interval(math.exp(logs.low), math.exp(logs.high)),
    )


def to_json(ranking: Ranking) -> dict[str, Any]:
    """Return the ranking as plain data."""
    found = {**asdict(ranking), "best": dict(ranking.best.point)}
    if ranking.default is None:
        return {key: value for key, value in found.items() if key not in ("default", "size", "worse_at")}
    winner = ranking.winner
    return {**found, "winner": winner and dict(winner.point), "gain": winner and ranking.gain_in_short}


# The overhead of Python: the same benchmark in C and in Python, interleaved in one allocation, by message size.


#: The parameter of a workload that has a twin in C, and its two values.
SUITE, C, PYTHON = "suite", "c", "python"


@dataclass(frozen=True)
class Row:
    """One message size in bytes (None: the benchmark has none); ``c`` and ``python``: medians of the repetitions."""

    size: int | None
    c: float
    python: float

    @property
    def difference(self) -> float:
        """What Python adds, in the metric's unit."""
        return self.python - self.c

    @property
    def relative(self) -> float | None:
        """The difference relative to C's value; None if that is 0."""
        return self.difference / self.c if self.c else None


@dataclass(frozen=True)
class Overhead:
    """One metric of one benchmark; ``point``: the other parameters of the matrix, formatted."""

    metric: str
    unit: str
    point: str
    rows: tuple[Row, ...]


def overheads(steps: Sequence[Mapping[str, Any]]) -> tuple[Overhead, ...]:
    """Return the overheads in the steps of one run (as in metrics.json); empty if it did not run both suites.

    Metrics and sizes that only one suite measured are excluded.
    """
    points: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        parameters = step.get("parameters", {})
        if parameters.get(SUITE) in (C, PYTHON):
            others = format_parameters({name: value for name, value in parameters.items() if name != SUITE})
            points.setdefault(others, []).append(step)
    return tuple(found for point, its in points.items() for found in _of_point(point, its))


def _of_point(point: str, steps: Sequence[Mapping[str, Any]]) -> Iterator[Overhead]:
    metrics = {name: found["unit"] for step in steps for name, found in step["metrics"].items()}
    for name, unit in metrics.items():
        by_suite = {suite: _medians(name, steps, suite) for suite in (C, PYTHON)}
        both = [size for size in by_suite[C] if size in by_suite[PYTHON]]
        if both:
            rows = tuple(Row(size, by_suite[C][size], by_suite[PYTHON][size]) for size in both)
            yield Overhead(name, unit, point, rows)


def _medians(metric: str, steps: Sequence[Mapping[str, Any]], suite: str) -> dict[int | None, float]:
    """Return the median over the repetitions by size."""
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

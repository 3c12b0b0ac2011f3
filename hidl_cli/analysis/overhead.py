"""The overhead of Python: the same benchmark in C and in Python, interleaved in one allocation, by message size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hidl_cli.plan.parameters import format_parameters

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

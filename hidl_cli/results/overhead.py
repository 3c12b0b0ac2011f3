"""What Python costs: the same benchmark in C and in Python, measured in turn in one allocation, size by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.runs.parameters import in_words

if TYPE_CHECKING:
    from rich.table import Table

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
        """What is added, or taken away, by Python, in the metric's unit."""
        return self.python - self.c

    @property
    def relative(self) -> float | None:
        """The difference in terms of C's value; None where that is 0."""
        return self.difference / self.c if self.c else None


@dataclass(frozen=True)
class Overhead:
    """One metric of one benchmark; ``point``: the other parameters that the run compares, in words."""

    metric: str
    unit: str
    point: str
    rows: tuple[Row, ...]


def overheads(steps: Sequence[Mapping[str, Any]]) -> tuple[Overhead, ...]:
    """What the steps of one run (as in metrics.json) tell; nothing, where it did not run both suites.

    Metrics that one of the two does not have, and sizes that only one measured, are left out.
    """
    points: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        parameters = step.get("parameters", {})
        if parameters.get(SUITE) in (C, PYTHON):
            others = in_words({name: value for name, value in parameters.items() if name != SUITE})
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
    """Size -> the median of the repetitions."""
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


def table(overhead: Overhead) -> Table:
    """The sizes with C's value, Python's, and what lies between."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    of = f" of {overhead.point}" if overhead.point else ""
    rows = Table(title=Text(f"{overhead.metric}{of}, {overhead.unit}"), title_justify="left", title_style="bold")
    rows.box, rows.show_edge, rows.padding = box.SIMPLE_HEAD, False, (0, 0, 0, 1)
    sized = overhead.rows[0].size is not None
    for heading in (*(("bytes",) if sized else ()), "C", "Python", "difference", "of C"):
        rows.add_column(heading, justify="right")
    for row in overhead.rows:
        share = "-" if row.relative is None else f"{row.relative:+.1%}"
        size = (str(row.size),) if sized else ()
        rows.add_row(*size, f"{row.c:,.2f}", f"{row.python:,.2f}", f"{row.difference:+,.2f}", share)
    return rows

"""Metrics by message size, as point-to-point and collective benchmarks yield them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from statistics import geometric_mean

from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import Curve, Line


def curves(group: Sequence[Loaded], baseline: Loaded | None, *, name: str, where: str) -> Iterator[Curve]:
    """The curves of the newest run of ``group`` that has any, each against ``baseline`` (None: the first such run)."""
    with_sizes = [run for run in group if _metrics(run)]
    if not with_sizes:
        return
    newest = with_sizes[-1]
    other = baseline or with_sizes[0]
    for metric in _metrics(newest):
        line = _line(newest, metric)
        held_against = _line(other, metric) if other.run.id != newest.run.id else None
        promised = newest.plan.workload.metrics.get(metric)
        if line is not None:
            unit = next(step["metrics"][metric]["unit"] for step in newest.steps if metric in step["metrics"])
            yield Curve(name, where, metric, unit, promised.better if promised else None, line, held_against)


def _metrics(run: Loaded) -> list[str]:
    """The metrics that have samples by size, each once."""
    return list(dict.fromkeys(m for step in run.steps for m, found in step["metrics"].items() if found.get("sizes")))


def _line(run: Loaded, metric: str) -> Line | None:
    """The geometric means over the repetitions of the largest step, size by size; None where there are no such."""
    by_size: dict[int, list[float]] = {}
    for step in run.steps:
        found = step["metrics"].get(metric, {})
        if step.get(run.plan.unit) != run.largest() or not found.get("sizes"):
            continue
        for size, value in zip(found["sizes"], found["samples"], strict=True):
            if isinstance(value, (int, float)) and 0 < value < inf:
                by_size.setdefault(size, []).append(float(value))
    points = tuple((size, geometric_mean(values)) for size, values in sorted(by_size.items()))
    return Line(run.run.id, run.plan.created, points) if points else None

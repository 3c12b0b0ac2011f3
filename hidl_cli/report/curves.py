"""Metrics by message size, from point-to-point and collective benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from statistics import geometric_mean

from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import Curve, Line

LARGEST = 2**63  # bytes: no message has more


def held_against(group: Sequence[Loaded], baseline: Loaded | Sequence[Loaded] | None) -> Loaded | None:
    """Return the run that the newest of ``group`` is compared with.

    ``baseline``: this run, whatever it measured; of several, the newest with the same workload, parameters and size;
    None: the first of the group with curves. Returns None if there is only the newest itself.
    """
    with_sizes = [run for run in group if metrics_by_size(run)]
    if baseline is None:
        found = with_sizes[0] if with_sizes else None
    elif isinstance(baseline, Loaded):
        found = baseline
    else:
        same = [point for run in baseline for point in run.by_point() if with_sizes and _alike(point, with_sizes[-1])]
        found = max(same, key=lambda run: run.plan.created, default=None)
    return None if found and with_sizes and found.run.id == with_sizes[-1].run.id else found


def _alike(one: Loaded, other: Loaded) -> bool:
    first, second = (
        (run.plan.workload.name, run.plan.telling_parameters, run.plan.unit, run.largest()) for run in (one, other)
    )
    return first == second


def curves(group: Sequence[Loaded], other: Loaded | None, *, name: str, where: str) -> Iterator[Curve]:
    """Return the curves of the newest run of ``group`` that has any, each against those of ``other``, if given."""
    with_sizes = [run for run in group if metrics_by_size(run)]
    if not with_sizes:
        return
    newest = with_sizes[-1]
    for metric in metrics_by_size(newest):
        line = line_of(newest, metric)
        before = line_of(other, metric) if other else None
        if line is not None:
            yield Curve(name, where, metric, *unit_of(newest, metric), line, before)


def unit_of(run: Loaded, metric: str) -> tuple[str, str | None]:
    """Return the metric's unit and direction, if known."""
    promised = run.plan.workload.metrics.get(metric)
    unit = next(step["metrics"][metric]["unit"] for step in run.steps if metric in step["metrics"])
    return unit, promised.better if promised else None


def metrics_by_size(run: Loaded) -> list[str]:
    """Return the metrics that have samples by size, each once."""
    return list(dict.fromkeys(m for step in run.steps for m, found in step["metrics"].items() if found.get("sizes")))


def line_of(run: Loaded, metric: str) -> Line | None:
    """Return the geometric means over the repetitions of the largest step by size; None without any.

    A size of 0 is shown in the table only, since the axis is logarithmic.
    """
    by_size: dict[int, list[float]] = {}
    for step in run.steps:
        found = step["metrics"].get(metric, {})
        if step.get(run.plan.unit) != run.largest() or not found.get("sizes"):
            continue
        for size, value in zip(found["sizes"], found["samples"], strict=True):
            if isinstance(value, (int, float)) and 0 < value < inf and size < LARGEST:
                by_size.setdefault(size, []).append(float(value))
    points = tuple((size, geometric_mean(values)) for size, values in sorted(by_size.items()))
    return Line(run.run.id, run.plan.created, points) if any(size for size, _ in points) else None

"""Curves by message size in one chart: of suites, of MPI libraries, of sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hidl_cli.analysis.overhead import SUITE
from hidl_cli.report.curves import line_of, metrics_by_size, unit_of
from hidl_cli.report.loaded import Loaded
from hidl_cli.report.model import Comparison
from hidl_cli.report.text import counted

MOST_LINES = 5  # more cannot be told apart


def comparisons(newest: Sequence[Loaded]) -> tuple[Comparison, ...]:
    """Yield the charts of runs (the newest of each kind) that differ only in suite, MPI library or site."""
    alike: dict[object, list[Loaded]] = {}
    for run in newest:
        alike.setdefault(_same(run), []).append(run)
    return tuple(found for runs in alike.values() if len(runs) > 1 for found in _of(runs))


def _of(runs: Sequence[Loaded]) -> Iterator[Comparison]:
    names = _names(runs)
    for metric in dict.fromkeys(metric for run in runs for metric in metrics_by_size(run)):
        drawn = [(name, run, line_of(run, metric)) for name, run in zip(names, runs, strict=True)]
        lines = tuple((name, line) for name, _, line in drawn if line is not None)[:MOST_LINES]
        if len(lines) > 1:
            first = next(run for _, run, line in drawn if line is not None)
            yield Comparison(first.plan.workload.name, metric, *unit_of(first, metric), lines)


def _same(run: Loaded) -> object:
    plan = run.plan
    parameters = tuple(sorted((name, str(value)) for name, value in plan.telling_parameters.items() if name != SUITE))
    return plan.workload.name, parameters, plan.unit, run.largest()


def _names(runs: Sequence[Loaded]) -> list[str]:
    """Name each run by what differs between them."""
    aspects = [
        [
            {"c": "C", "python": "Python"}.get(str(run.plan.parameters.get(SUITE, "")), ""),
            f"{run.plan.mpi.name} {run.plan.mpi.version or ''}".strip(),
            "/".join(part for part in (run.plan.site, run.plan.partition) if part),
            run.plan.stack,
            run.plan.launcher,
            counted(max(step.placement.nodes for step in run.plan.steps), "nodes"),
        ]
        for run in runs
    ]
    differ = [number for number, values in enumerate(zip(*aspects, strict=True)) if len(set(values)) > 1]
    return [
        ", ".join(its[number] for number in differ if its[number]) or run.run.id
        for its, run in zip(aspects, runs, strict=True)
    ]

"""What the steps of an ended run measured: the files that their programs left in the run's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hidl_cli.record.run import Run
from hidl_cli.runs.metrics import hold, read_metrics
from hidl_cli.runs.parsers import parse
from hidl_cli.runs.plan import OUTPUT, Plan, Step

#: Written by a job that found its study settled: how many repetitions it measured.
ENOUGH = "enough"


def measured(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """One entry for each step that was run, and for each copy of one that was copied (``copy`` counts from 1).

    ``hosts`` are those that it ran on, ``parameters`` those that a matrix changes. Raises ``MetricMissing`` where a
    metric is not there.
    """
    repetitions = (run.document(ENOUGH) or {}).get("rounds") or plan.repetitions
    return [
        entry
        for number, step in enumerate(plan.steps, start=1)
        if step.repetition <= repetitions
        for entry in _entries(run.directory / "steps" / str(number), plan, step)
    ]


def _entries(place: Path, plan: Plan, step: Step) -> Iterator[dict[str, Any]]:
    about: dict[str, Any] = {plan.unit: step.size, "ranks": step.placement.ranks, "repetition": step.repetition}
    if step.point:
        about["parameters"] = dict(step.point)
    if not step.copies:
        yield {**about, "hosts": _hosts(place), "metrics": _metrics(place, plan, step)}
    for copy in range(1, step.copies + 1):
        its = place / "copies" / str(copy)
        yield {**about, "copy": copy, "hosts": _hosts(its), "metrics": _metrics(its, plan, step)}


def _metrics(place: Path, plan: Plan, step: Step) -> dict[str, dict[str, Any]]:
    promised, ranks = plan.workload.metrics, step.placement.ranks
    if step.parser is None:
        return read_metrics(place / "metrics.json", promised, ranks=ranks)
    return hold(parse(step.parser, place / OUTPUT), promised, ranks=ranks, source=place / OUTPUT)


def _hosts(place: Path) -> list[str]:
    """The hosts in a host file, whatever each launcher wants beside their names."""
    try:
        lines = (place / "hosts").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    return [line.split()[0].partition(":")[0] for line in lines if line.strip()]

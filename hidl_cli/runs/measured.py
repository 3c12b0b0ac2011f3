"""Read the metrics that the steps of an ended run left in its directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hidl_cli.plan.launch_plan import OUTPUT, TIMING, Plan, Step
from hidl_cli.plan.patterns import names_of
from hidl_cli.plan.workload import TIMES, Metric
from hidl_cli.record.run import Run
from hidl_cli.runs.metrics import check_metrics, read_metrics
from hidl_cli.runs.parsers import parse
from hidl_cli.runs.parsers.patterns import read_patterns
from hidl_workloads.enough import is_disturbed

#: Written by a job that found its study settled: how many repetitions it measured.
ENOUGH = "enough"


def count_complete_repetitions(run: Run, plan: Plan) -> int:
    """Return how many repetitions, from the first on, left the metrics of all their steps.

    Of a step whose metrics are read from its output that is so once the next one has begun.
    """
    running = run.status().step
    missing = [
        step.repetition
        for number, step in enumerate(plan.steps, start=1)
        if not all(
            place.is_file() and (place.name != OUTPUT or number != running)
            for place in _documents(run.directory / "steps" / str(number), step)
        )
    ]
    return min(missing, default=plan.repetitions + 1) - 1


def _documents(place: Path, step: Step) -> Iterator[Path]:
    name = TIMING if step.timed else "metrics.json" if step.parser is None and not step.patterns else OUTPUT
    yield from (each / name for each in directories(place, step))


def directories(place: Path, step: Step) -> list[Path]:
    """Return where a step left its metrics: its directory, or one for each of its copies."""
    return [place / "copies" / str(copy) for copy in range(1, step.copies + 1)] if step.copies else [place]


def read_steps(run: Run, plan: Plan, rounds: int | None = None) -> list[dict[str, Any]]:
    """Return one entry for each step that ran, and for each copy of a copied one (``copy`` counts from 1).

    ``hosts``: where it ran; ``parameters``: those of the matrix; ``disturbed``: True where another run used the
    machine's cores meanwhile. ``rounds``: only this many repetitions; None: as many as the job recorded, or the plan
    has. Raises ``MetricMissing`` if a metric is missing.
    """
    repetitions = rounds or (run.document(ENOUGH) or {}).get("rounds") or plan.repetitions
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
    if is_disturbed(place):
        about["disturbed"] = True
    for copy, its in enumerate(directories(place, step), start=1):
        about_copy = {"copy": copy} if step.copies else {}
        yield {**about, **about_copy, "hosts": _hosts(its), "metrics": metrics_of(its, plan, step)}


def metrics_of(place: Path, plan: Plan, step: Step) -> dict[str, dict[str, Any]]:
    """Return the metrics that a step, or a copy of it, left in its directory; raises ``MetricMissing``."""
    promised, ranks = dict(plan.workload.metrics), step.placement.ranks
    if not step.timed:
        return _of_the_program(place, step, promised)
    times = {name: promised.pop(name) for name in TIMES.keys() & promised.keys() - names_of(step.patterns)}
    return {**read_metrics(place / TIMING, times, ranks=ranks), **_of_the_program(place, step, promised)}


def _of_the_program(place: Path, step: Step, promised: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Read what the patterns find; the other metrics from what the parser finds, or from what the program wrote."""
    ranks = step.placement.ranks
    found = read_patterns(step.patterns, promised, place, ranks=ranks) if step.patterns else {}
    check_metrics(found, {name: promised[name] for name in found}, ranks=ranks, source=place / OUTPUT)
    others = {name: metric for name, metric in promised.items() if name not in names_of(step.patterns)}
    if step.parser is None:
        return {**read_metrics(place / "metrics.json", others, ranks=ranks), **found}
    if step.patterns and not others:  # --metric asks for others than the parser's
        return found
    parsed = check_metrics(parse(step.parser, place / OUTPUT), others, ranks=ranks, source=place / OUTPUT)
    return {**parsed, **found}


def _hosts(place: Path) -> list[str]:
    """Return the host names in a host file of any launcher's format."""
    try:
        lines = (place / "hosts").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    return [line.split()[0].partition(":")[0] for line in lines if line.strip()]

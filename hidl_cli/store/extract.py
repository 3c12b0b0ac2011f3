"""Extract records for the store from run directories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import Any

from hidl_cli.analysis.samples import DISTURBED, Sample
from hidl_cli.errors import HidlError
from hidl_cli.mpi import Library
from hidl_cli.plan.launch_plan import Plan, Step, plan_of
from hidl_cli.record import Run
from hidl_cli.redaction import redact_document, redact_variable


@dataclass(frozen=True)
class StoredRun:
    """A run in the store, with its verdict.

    ``efficiency`` is the efficiency of a study's largest step. ``metric`` is the workload's scaling metric, or else its
    first metric.
    """

    run: str
    directory: str
    created: str
    site: str
    partition: str | None
    workload: str
    parameters: Mapping[str, bool | int | float | str]
    stack: str
    lock: str
    launcher: str
    mpi: str
    tuning: Mapping[str, str]
    verdict: str | None
    reason: str | None
    efficiency: float | None
    metric: str | None


@dataclass(frozen=True)
class RunWithSamples(StoredRun):
    """A run with its samples. ``steps`` contains each sample's step number (from 1)."""

    samples: tuple[Sample, ...]
    steps: tuple[int, ...]

    @property
    def root(self) -> str:
        """The run directory's parent."""
        return str(Path(self.directory).parent)

    @property
    def name(self) -> str:
        """The run directory's name."""
        return Path(self.directory).name

    @property
    def time(self) -> int:
        """The creation time (``created``) in seconds since the epoch."""
        return int(instant(self.created).timestamp())


def samples_of(run: Run) -> list[Sample]:
    """Return the samples of a run that has a verdict: all numeric metrics of all steps.

    Raises ``HidlError`` if the run's documents cannot be read, or were written by another version of hidl.
    """
    return list(record_of(run).samples)


def record_of(run: Run, plan: Plan | None = None) -> RunWithSamples:
    """Return a run with its samples. Raises the same errors as ``samples_of``.

    If the plan is not given, it is read from the run's directory.
    """
    plan = plan or plan_of(run)
    verdict = run.document("verdict") or {}
    metrics = run.document("metrics") or {}
    hosts = run.status().hosts
    plans = {tuple(point.items()): plan.at(point) for point in plan.points}
    try:
        instant(plan.created)
        found = [
            (number, sample)
            for number, measured in enumerate(metrics.get("steps", []), start=1)
            for sample in _samples(
                plans[tuple(measured.get("parameters", {}).items())], measured, hosts, verdict.get("verdict")
            )
        ]
        json.dumps([run.id, metrics, verdict, hosts], ensure_ascii=False).encode()  # raises an error for invalid text
        return RunWithSamples(
            run=plan.run,
            directory=str(run.directory.resolve()),
            created=plan.created,
            site=plan.site,
            partition=plan.partition,
            workload=plan.workload.name,
            parameters=redact_document(dict(plan.parameters)),
            stack=plan.stack,
            lock=plan.lock,
            launcher=plan.launcher,
            mpi=_mpi(plan.mpi),
            tuning=_tuning(plan),
            verdict=verdict.get("verdict"),
            reason=verdict.get("reason"),
            efficiency=_efficiency(verdict),
            metric=plan.workload.scaling.metric if plan.workload.scaling else next(iter(plan.workload.metrics), None),
            samples=tuple(sample for _, sample in found),
            steps=tuple(number for number, _ in found),
        )
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise HidlError(f"cannot read the metrics or the verdict in {run.directory}") from error


def instant(text: str) -> datetime:
    """Parse an ISO 8601 time, UTC by default. Raises ``ValueError``."""
    time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def series_of(plan: Plan, step: Step, *, disturbed: bool = False) -> str:
    """Return a digest of the conditions that must be the same if values are compared over time (see ``Sample.series``).

    The MPI library's version does not matter. Concurrent copies are not compared with a step that ran alone. A
    ``disturbed`` step is one during which another run used the same cores; its digest has a prefix.
    """
    placement = step.placement
    same = {
        "site": plan.site,
        "partition": plan.partition,
        "workload": plan.workload.name,
        "parameters": redact_document(plan.telling_parameters),
        "stack": plan.stack,
        "launcher": plan.launcher,
        "mpi": [plan.mpi.name, plan.mpi.family],
        "nodes": placement.nodes,
        "ranks": placement.ranks,
        "ranks_per_node": placement.ranks_per_node,
        "threads_per_rank": placement.threads_per_rank,
        "bind": placement.bind,
        "copies": step.copies > 0,
    }
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]
    return f"{DISTURBED}{digest}" if disturbed else digest


def _samples(plan: Plan, measured: Mapping[str, Any], hosts: tuple[str, ...], verdict: str | None) -> Iterator[Sample]:
    """Yield one step's samples. A step runs on the job's first hosts unless its metrics name other hosts."""
    step = next(step for step in plan.steps if step.size == measured[plan.unit])
    series = series_of(plan, step, disturbed=measured.get("disturbed", False))
    step_hosts = tuple(measured.get("hosts") or hosts[: step.copies or step.placement.nodes])
    for name, metric in measured["metrics"].items():
        declared = plan.workload.metrics.get(name)
        for rank, value in _values(metric, for_each_rank=bool(declared and declared.equal_on_all_ranks)):
            yield Sample(
                run=plan.run,
                created=plan.created,
                site=plan.site,
                partition=plan.partition,
                workload=plan.workload.name,
                series=series,
                stack=plan.stack,
                lock=plan.lock,
                launcher=plan.launcher,
                mpi=_mpi(plan.mpi),
                nodes=step.placement.nodes,
                ranks=step.placement.ranks,
                repetition=measured["repetition"],
                metric=name,
                unit=metric["unit"] if isinstance(metric["unit"], str) else "",
                better=declared.better if declared else None,
                value=value,
                rank=rank,
                hosts=step_hosts,
                parameters=redact_document(dict(plan.parameters)),
                point=redact_document(measured.get("parameters", {})),
                tuning=_tuning(plan),
                verdict=verdict,
            )


def _values(metric: Mapping[str, Any], *, for_each_rank: bool) -> Iterator[tuple[int | None, float]]:
    """Yield the step's value (rank None), followed by the ranks' values if there is one for each rank."""
    value = _number(metric["value"])
    if value is not None:
        yield None, value
    samples = metric["samples"]
    for rank, sample in zip(metric.get("ranks", range(len(samples)) if for_each_rank else ()), samples, strict=False):
        number = _number(sample)
        if number is not None:
            yield rank, number


def _number(value: Any) -> float | None:
    """Return a finite number as a float, or None for text (such as a checksum) and all other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _mpi(library: Library) -> str:
    return f"{library.family} {library.version}" if library.version else library.family


def _tuning(plan: Plan) -> dict[str, str]:
    return {setting.name: redact_variable(setting.name, setting.value) for setting in plan.tuning}


def _efficiency(verdict: Mapping[str, Any]) -> float | None:
    steps = (verdict.get("study") or {}).get("steps") or []
    return _number(steps[-1].get("efficiency")) if steps else None

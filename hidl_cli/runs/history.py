"""The runs as history: read from their directories, which are the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hidl_cli.errors import MetricMissing
from hidl_cli.record.run import Run, all_runs
from hidl_cli.record.state import State
from hidl_cli.runs.conclude import conclude
from hidl_cli.runs.follow import scheduler_of
from hidl_cli.runs.plan import plan_of


def refresh(run: Run) -> Run:
    """Bring the directory up to date: ask the scheduler, and judge a run that ended while nobody followed it."""
    plan = plan_of(run)
    (status,) = scheduler_of(plan).poll([run])
    if status.state is State.COMPLETED and run.document("verdict") is None:
        with suppress(MetricMissing):  # the verdict says so
            conclude(run, plan, status)
    return run


def document_of(run: Run) -> dict[str, Any]:
    """One run as plain data: what it was, how it ended, its metrics and its verdict."""
    plan = plan_of(run)
    status = run.status()
    metrics = run.document("metrics") or {}
    verdict = run.document("verdict") or {}
    return {
        "run": run.id,
        "directory": str(run.directory),
        "created": plan.created,
        "site": plan.site,
        "stack": plan.stack,
        "lock": plan.lock,
        "workload": plan.workload.name,
        "parameters": dict(plan.parameters),
        "launcher": plan.launcher,
        "state": status.state.value,
        "step": status.step,
        "steps_planned": len(plan.steps),
        "seconds": status.seconds,
        "exit_status": status.exit_status,
        "hosts": list(status.hosts),
        "steps": metrics.get("steps", []),
        "verdict": {key: verdict.get(key) for key in ("verdict", "reason", "hint", "study")} if verdict else None,
    }


def results(*, workload: str | None = None, root: Path | None = None) -> Iterator[dict[str, Any]]:
    """The documents of all runs that ended well, the newest first; of one workload where it is named."""
    for run in all_runs(root):
        if workload is None or plan_of(run).workload.name == workload:
            document = document_of(refresh(run))
            if document["state"] == State.COMPLETED.value:
                yield document

"""Past runs, read from their directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hidl_cli.errors import MetricMissing
from hidl_cli.plan.launch_plan import plan_of, readable
from hidl_cli.record.run import Run, all_runs
from hidl_cli.record.state import State, Status
from hidl_cli.runs.conclude import conclude, keep_likely_causes
from hidl_cli.runs.follow import Watch


def refresh(runs: Sequence[Run]) -> list[Status]:
    """Update the directories: query each scheduler once, and judge runs that ended unattended."""
    statuses = Watch(runs).poll()
    for run, status in zip(runs, statuses, strict=True):
        judge_if_ended(run, status)
    return statuses


def judge_if_ended(run: Run, status: Status) -> None:
    """Judge a completed run, or find the causes of a failed one, unless already done."""
    if status.state is not State.COMPLETED:
        keep_likely_causes(run, status)
    elif run.document("verdict") is None:
        with suppress(MetricMissing):  # the verdict says so
            conclude(run, plan_of(run), status)


def unfinished(root: Path | None = None) -> Iterator[Run]:
    """Yield the runs that have not ended by their jobs' own record, newest first."""
    return (run for run in readable(all_runs(root)) if not run.status().state.is_final)


def run_document(run: Run, status: Status | None = None) -> dict[str, Any]:
    """Return one run as plain data: plan, status (None: as its job last recorded), metrics and verdict."""
    plan = plan_of(run)
    status = status or run.status()
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
        "scheduler": plan.scheduler,
        "job": (run.document("job") or {}).get("id"),
        "state": status.state.value,
        "reason": status.reason,
        "step": status.step,
        "steps_planned": len(plan.steps),
        "seconds": status.seconds,
        "exit_status": status.exit_status,
        "hosts": list(status.hosts),
        "steps": metrics.get("steps", []),
        "causes": (run.document("causes") or {}).get("findings", []),
        "verdict": {key: verdict.get(key) for key in ("verdict", "reason", "hint", "study", "ranking", "pairs")}
        if verdict
        else None,
    }

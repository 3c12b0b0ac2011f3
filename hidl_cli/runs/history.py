"""Read and update past runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hidl_cli.documents import write_json
from hidl_cli.errors import HidlError, MetricMissing
from hidl_cli.plan.launch_plan import plan_of, readable
from hidl_cli.profile import keep_profile
from hidl_cli.record import Run, Status, all_runs, job_id
from hidl_cli.redaction import Secrets
from hidl_cli.runs.conclude import conclude, has_results, keep_likely_causes
from hidl_cli.runs.follow import Watch
from hidl_cli.runs.goodput import nodes_of_jobs, read_goodput
from hidl_cli.runs.metrics import directories, metrics_of
from hidl_cli.schedulers.decision import read_status

FOUND = "found.json"


def main(words: list[str]) -> int:
    """Record the metrics of the round that has just ended, in the directories of its steps; return the exit status."""
    run, done = Run(Path(words[0])), int(words[1])
    try:
        plan = plan_of(run)
        for number, step in enumerate(plan.steps, start=1):
            if step.repetition != done:
                continue
            for place in directories(run.directory / "steps" / str(number), step):
                values = metrics_of(place, plan, step).items()
                write_json(place / FOUND, {"metrics": [{"name": n, "value": each["value"]} for n, each in values]})
    except (HidlError, OSError, ValueError) as error:
        print(f"hidl: cannot determine whether the study is settled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def refresh(runs: Sequence[Run], *, warn: Callable[[HidlError], object] | None = None) -> list[Status]:
    """Update the status of runs with one query per scheduler, and determine the verdicts of those that have ended.

    ``warn`` receives the error for each run whose verdict cannot be determined. Without ``warn``, the first error is
    raised at the end.
    """
    statuses = Watch(runs).poll()
    errors = []
    for run, status in zip(runs, statuses, strict=True):
        try:
            judge_if_ended(run, status)
        except HidlError as error:
            errors.append(error)
    for each in errors:
        if warn is None:
            raise each
        warn(each)
    return statuses


def judge_if_ended(run: Run, status: Status) -> None:
    """Write the verdict of an ended run, or the likely causes if it failed, unless these files already exist."""
    if not status.state.is_final or run.document("verdict") is not None:
        return
    plan = plan_of(run)
    if has_results(run, plan, status):
        with suppress(MetricMissing):  # the failure is part of the verdict
            conclude(run, plan, status)
    else:
        keep_likely_causes(run, status)
        keep_profile(run, plan)


def unfinished(root: Path | None = None) -> Iterator[Run]:
    """Yield the runs that are not recorded as finished, starting with the newest."""
    return (run for run in readable(all_runs(root)) if not read_status(run).state.is_final)


def run_document(run: Run, status: Status | None = None) -> dict[str, Any]:
    """Return the plan, status, metrics and verdict of a run as plain data without secrets.

    ``status`` defaults to the one that the job recorded.
    """
    plan = plan_of(run)
    status = status or read_status(run)
    goodput = read_goodput(run, plan)
    unreadable: list[str] = []
    job, metrics, verdict, causes = (_read(run, name, unreadable) for name in ("job", "metrics", "verdict", "causes"))
    document = {
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
        "job": job_id(job, status),
        "state": status.state.value,
        "reason": status.reason or ("; ".join(unreadable) or None),
        "step": status.step,
        "steps_planned": len(plan.steps),
        "seconds": status.seconds,
        "exit_status": status.exit_status,
        "hosts": list(status.hosts),
        "attempts": [
            {"state": each.state.value, "started": each.started, "ended": each.ended, "hosts": list(each.hosts)}
            for each in run.attempts()
            if each.started is None or each.started != status.started
        ],
        "nodes_of_jobs": nodes_of_jobs(run),
        "goodput": goodput and goodput.to_json(),
        "steps": metrics.get("steps", []),
        "causes": causes.get("findings", []),
        "verdict": {key: verdict.get(key) for key in ("verdict", "reason", "hint", "study", "ranking", "pairs")}
        if verdict
        else None,
    }
    return Secrets().learn(plan.to_json(), document).hide_document(document)


def _read(run: Run, name: str, unreadable: list[str]) -> dict[str, Any]:
    """Return a document of the run, or an empty one if it is missing or invalid; ``unreadable`` collects the errors."""
    try:
        return run.document(name) or {}
    except HidlError as error:
        unreadable.append(error.message)
        return {}

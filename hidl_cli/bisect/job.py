"""The job of a bisect: one allocation that holds all its configurations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import hidl_cli
from hidl_cli.batch_systems import SSH
from hidl_cli.bisect.journal import Bisect, Question
from hidl_cli.errors import JobFailed, SubmitRefused, UsageError
from hidl_cli.launch.allocation import Asked, allocate, missing
from hidl_cli.launch.hosts import Hosts, on_hosts
from hidl_cli.plan.job_script import values_of
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.planning import new_id
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.runs.follow import end, follow, scheduler_of
from hidl_cli.runs.parsers.output import last_lines
from hidl_cli.schedulers import scheduler_for
from hidl_cli.site.schema import Site
from hidl_cli.templates import render_script

_TAIL_LINES, _TAIL_WIDTH = 10, 500


def plan_job(question: Question, site: Site, asked: Asked) -> Plan:
    """Return the plan of the job: the good run's, without steps, in the allocation that the configurations need.

    Raises ``UsageError`` if one of the runs was on another site, and what ``allocate`` raises.
    """
    sides = (question.good, question.bad)
    for side in sides:
        if side.plan.site != site.name:
            raise UsageError(
                f"run {side.plan.run} was on site {side.plan.site}, not on {site.name}",
                hint=f"bisect there (--site {side.plan.site}), or replay both here first (hidl replay)",
            )
    good = question.good.plan
    if good.scheduler == SSH and good.allocation.hosts:
        asked = replace(asked, hosts=Hosts(good.allocation.hosts))
        site = on_hosts(site, asked.hosts)
    asked = replace(asked, partition=asked.partition or good.partition, gpus=bool(good.allocation.gpus_per_node))
    allocation = allocate(site, "hidl-bisect", [side.placement for side in sides], asked)
    now = datetime.now(timezone.utc)
    return replace(
        good,
        run=new_id("bisect", now),
        created=now.isoformat(timespec="seconds"),
        allocation=allocation,
        header=scheduler_for(site).header(allocation, site.policies),
        partition=asked.partition or site.default_partition,
        missing=tuple(missing(site.policies, allocation)),
        steps=(),
        warnings=(),
    )


def script_of(plan: Plan, bisect: Bisect, confidence: float, budget: int) -> str:
    """Return the job script."""
    package = Path(hidl_cli.__file__).parents[1]
    clean = [word for name in ("PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD") for word in ("-u", name)]
    driver = [
        *("env", *clean, f"PYTHONPATH={package}", sys.executable, "-m", "hidl_cli.bisect.inside"),
        *(str(bisect.directory), repr(confidence), str(budget)),
    ]
    return render_script("bisect.sh.j2", {**values_of(plan), "driver": driver})


def run_job(
    bisect: Bisect, plan: Plan, confidence: float, budget: int, *, tell: Callable[[Run, Status], None]
) -> tuple[Run, Status]:
    """Run the job to its end, or follow the one that still runs. An interrupt ends it; what was measured stays.

    Raises ``SubmitRefused`` if the site requires more options, and what the scheduler's ``submit`` raises.
    """
    job = bisect.last_job()
    if job is None or not _is_alive(job):
        if plan.missing:
            raise SubmitRefused(
                f"site {plan.site} requires {' and '.join(plan.missing)}", hint=f"{plan.missing[0]} NAME"
            )
        job = create_run(plan, script_of(plan, bisect, confidence, budget), root=bisect.jobs)
        scheduler_of(plan).submit(job)
    (status,) = follow(
        [job],
        tell=tell,
        interrupted=lambda run, _: end(run, State.INTERRUPTED),
    )
    return job, status


def _is_alive(job: Run) -> bool:
    (status,) = scheduler_of(plan_of(job)).poll([job])
    return not status.state.is_final


def require_end(job: Run, status: Status) -> None:
    """Raise ``JobFailed`` unless the job ended well or reached its time limit."""
    if status.state in (State.COMPLETED, State.TIMEOUT):
        return
    tail = "\n".join(last_lines(job.stderr, _TAIL_LINES, width=_TAIL_WIDTH))
    raise JobFailed(
        f"the job of the bisect ended as {status.state.value}{f' ({status.reason})' if status.reason else ''}\n{tail}",
        hint=f"what was measured is kept: call it again to go on; its output is in {job.directory}",
    )

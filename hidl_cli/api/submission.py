"""Submission and cancellation of runs, shared by the command line and the Python API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hidl_cli.errors import MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import DoctorReport
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.record.run import Run, Status


def submit(plan: Plan, script: str) -> Run:
    """Create the run's directory and submit its job; propagates errors raised by ``create_run`` and the scheduler."""
    from hidl_cli.plan.launch_plan import create_run
    from hidl_cli.runs.follow import scheduler_of

    record = create_run(plan, script)
    scheduler_of(plan).submit(record)
    return record


def cancel(run: Run) -> tuple[bool, Status]:
    """Cancel a run with all its processes; return whether it was still running, and its status."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import State
    from hidl_cli.runs.follow import scheduler_of

    scheduler = scheduler_of(plan_of(run))
    scheduler.poll([run])
    ended_now = scheduler.cancel(run, state=State.CANCELLED)
    return ended_now, scheduler.poll([run])[0]


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return a plan's warnings for the user, one sentence each."""
    from hidl_cli import batch_systems

    missing = f"site {plan.site} requires {' and '.join(plan.missing)}, which is not set"
    system = batch_systems.system(plan.scheduler)
    job = os.environ.get(system.job_id) if system else None
    outer = f"the run is a separate job: it does not use the nodes of job {job}, and waits if that job has them all"
    return (*plan.warnings, *([missing] if plan.missing else ()), *([outer] if job else ()))


def doctor_error(examined: DoctorReport, *, detailed: bool = False) -> MissingPrecondition:
    """Return the error for a run that the doctor expects to fail; ``detailed`` includes the doctor's findings."""
    ids = ", ".join(dict.fromkeys(finding.rule for finding in examined.errors))
    found = [f"  {each.rule} {each.title}: {each.seen}; fix: {each.fix}" for each in examined.errors]
    return MissingPrecondition(
        "\n".join([f"the run would fail: {ids}; nothing was submitted", *(found if detailed else ())]),
        hint="apply the fix and check again with hidl doctor, or skip these checks: --no-check",
    )

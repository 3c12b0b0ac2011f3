"""From a plan to a submitted run: what the command line and Python have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hidl_cli.errors import MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import Examined
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.record.run import Run
    from hidl_cli.record.state import Status


def submit(plan: Plan, script: str) -> Run:
    """Create the run's directory and submit its job; raises what ``create_run`` and the scheduler raise."""
    from hidl_cli.plan.launch_plan import create_run
    from hidl_cli.runs.follow import scheduler_of

    record = create_run(plan, script)
    scheduler_of(plan).submit(record)
    return record


def cancel(run: Run) -> tuple[bool, Status]:
    """End a run and all its processes; return whether it had not ended before, and its status."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.state import State
    from hidl_cli.runs.follow import scheduler_of

    scheduler = scheduler_of(plan_of(run))
    scheduler.poll([run])
    ended_now = scheduler.cancel(run, state=State.CANCELLED)
    return ended_now, scheduler.poll([run])[0]


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return what the user should know of a plan before it runs, in sentences."""
    missing = f"site {plan.site} requires {' and '.join(plan.missing)}; not set"
    return (*plan.warnings, *([missing] if plan.missing else ()))


def refusal(examined: Examined, *, detailed: bool = False) -> MissingPrecondition:
    """Return the error of a run that the doctor's errors would make fail; ``detailed``: with what was found."""
    ids = ", ".join(dict.fromkeys(finding.rule for finding in examined.errors))
    found = [f"  {each.rule} {each.title}: {each.seen}; fix: {each.fix}" for each in examined.errors]
    return MissingPrecondition(
        "\n".join([f"the run would fail: {ids}; nothing was submitted", *(found if detailed else ())]),
        hint="apply the fix (hidl doctor checks again), or skip these checks: --no-check",
    )

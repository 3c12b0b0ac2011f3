"""``hidl run --matrix ... --as-jobs``: sweeps in which each point (combination of parameter values) is a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from hidl_cli.commands.follow import continues_after, follow_and_judge_each, leave
from hidl_cli.commands.render import emit_json, say, show_error, show_table
from hidl_cli.errors import ExitCode, HidlError, UsageError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.parameters import format_parameters
from hidl_cli.plan.workload import names_of
from hidl_cli.record import Run, State
from hidl_cli.redaction import redact_variable
from hidl_cli.runs.history import run_document
from hidl_cli.runs.sweep import Sweep, create, submit_pending
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.job_options import starts_after
from hidl_cli.tuning.judge import compared_variables

if TYPE_CHECKING:
    from hidl_cli.plan.options import RunOptions
    from hidl_cli.site.schema import Site


def point_plans(
    options: RunOptions, plan: Plan, machine: Site, *, hypothetical: bool
) -> list[tuple[Mapping[str, Any], Plan]]:
    """Return the parameters and the plan of each point; the argument ``plan`` is the plan of the whole matrix.

    Raises ``UsageError`` if the points cannot be separate jobs.
    """
    from hidl_cli.plan.input_files import PIPED
    from hidl_cli.plan.options import RunRequest, as_word
    from hidl_cli.plan.prepare import prepare

    if not options.matrix:
        raise UsageError("--as-jobs requires --matrix", hint="for example --matrix lr=0.1,0.01")
    if any(map(compared_variables, plan.points)):
        raise UsageError(
            "--as-jobs cannot compare run-time variables: jobs differ in nodes and load", hint="omit --as-jobs"
        )
    if options.stdin == PIPED:
        raise UsageError("--as-jobs cannot copy a pipe to several jobs", hint="use a file: < FILE")
    found = []
    for point in plan.points:
        words = [*options.assignments, *(f"{name}={as_word(value)}" for name, value in point.items())]
        one = replace(options, matrix=None, parameters=words, suite=None, new_job=True)
        found.append((point, prepare(RunRequest.of(one, hypothetical=hypothetical), machine)))
    return found


def start_sweep(plans: list[tuple[Mapping[str, Any], Plan]], *, at_most: int | None, wait: bool, json: bool) -> None:
    """Submit each point as a job, and follow the jobs unless ``wait`` is False."""
    chained = starts_after(plans[0][1].scheduler)
    if at_most is None and not chained:
        at_most = 1
    if not wait and not chained and at_most is not None and at_most < len(plans):
        raise UsageError(
            "--no-wait requires a batch system that starts jobs one after another", hint=f"--at-most {len(plans)}"
        )
    sweep = create(plans, at_most)
    limited = f", at most {at_most} at once" if at_most else ""
    say(f"sweep {sweep.id} in {sweep.directory}: {len(plans)} jobs{limited}")
    _carry_out(sweep, wait=wait, json=json, own=True)


def resume_sweep(sweep: Sweep, *, json: bool) -> None:
    """Run the failed and missing points of a sweep again, follow all jobs, and print the table."""
    from hidl_cli.runs.history import refresh

    refresh(sweep.runs)
    sweep.set_cancelled(False, say)
    _carry_out(sweep, wait=True, json=json, own=False)


def _carry_out(sweep: Sweep, *, wait: bool, json: bool, own: bool) -> None:
    def submitted(index: int, run: Run) -> None:
        say(f"{format_parameters(_shown(sweep.points[index].parameters))}: run {run.id}")

    try:
        try:
            submit_pending(sweep, submitted, say)
        except HidlError:
            runs, points = sweep.runs, len(sweep.points)
            number = sum(1 for run in runs if read_status(run).state is not State.REFUSED)
            rest = f"to follow them and submit the rest: hidl resume {sweep.id}"
            say(f"{number} of {points} points are submitted; {rest}")
            raise
        if sweep.is_cancelled:
            say(f"sweep {sweep.id} has been cancelled: no further points are submitted")
        if not wait:
            if json:
                emit_json("hidl.sweep/1", **_document(sweep))
            else:
                say(f"to follow it: hidl resume {sweep.id}")
            return
        code = follow_and_judge_each(sweep.runs, interrupted=None)
    except KeyboardInterrupt as interrupt:
        runs = sweep.unfinished
        if own and not (runs and continues_after(runs[0], interrupt)):
            cancel_sweep(sweep)
        else:
            for run in runs:
                leave(run, interrupt)
        raise
    if json:
        emit_json("hidl.sweep/1", **_document(sweep))
    else:
        _show(sweep)
    if code:
        raise typer.Exit(code)


def cancel_sweep(sweep: Sweep) -> ExitCode:
    """Cancel a sweep's unfinished runs and submit no further ones; return the exit code of the first failure."""
    from hidl_cli.runs.follow import cancel

    sweep.set_cancelled(True, say)
    code = ExitCode.OK
    # Jobs that wait for other jobs are cancelled first. Otherwise, they could start once the other jobs are cancelled.
    for run in reversed(sweep.unfinished):
        try:
            _, status = cancel(run)
        except HidlError as error:
            show_error(error)
            code = code or error.exit_code
        else:
            say(f"run {run.id}: {status.state.value}")
    if code:
        say(f"to cancel the remaining runs: hidl cancel {sweep.id}")
    else:
        say(f"to run the remaining points: hidl resume {sweep.id}")
    return code


def _shown(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: redact_variable(name, str(value)) for name, value in parameters.items()}


def _document(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as plain data without secrets."""
    points = []
    for point in sweep.points:
        run = point.run
        document = run_document(run) if run else {"state": "PENDING"}
        metrics = _metrics(run) if run else {}
        points.append(
            {
                "parameters": _shown(point.parameters),
                "state": document["state"],
                "run": run.id if run else None,
                "runs": list(point.runs),
                "metrics": metrics,
            }
        )
    return {"sweep": sweep.id, "directory": str(sweep.directory), "at_most": sweep.at_most, "points": points}


def _metrics(run: Run) -> dict[str, dict[str, Any]]:
    """Return the mean and the unit of each metric of a run, beginning with those of ``--metric``."""
    values: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    try:
        plan = plan_of(run)
        steps = (run.document("metrics") or {}).get("steps", [])
    except HidlError:
        return {}
    for step in steps:
        for name, metric in step["metrics"].items():
            if isinstance(metric["value"], int | float):
                values.setdefault(name, []).append(metric["value"])
                units[name] = metric["unit"]
    matched = names_of(plan.workload.program.patterns)
    judged = plan.workload.scaling.metric if plan.workload.scaling else None
    names = sorted(values, key=lambda name: (name not in matched, name != judged))
    return {name: {"value": fmean(values[name]), "unit": units[name]} for name in names}


def _show(sweep: Sweep) -> None:
    document = _document(sweep)
    metric_name = next((name for point in document["points"] for name in point["metrics"]), None)
    rows = []
    columns: dict[str, str] = {}
    for point in document["points"]:
        metric = point["metrics"].get(metric_name)
        head = f"{metric_name} ({metric['unit']})" if metric else ""
        # A parameter may have the same name as a column.
        values = {"run": point["run"] or "", "state": point["state"].lower()}
        columns = {name: f"{name} of the job" if name in point["parameters"] else name for name in values}
        row = {**point["parameters"], **{columns[name]: value for name, value in values.items()}}
        rows.append((row, head, f"{metric['value']:.6g}" if metric else ""))
    shown = next((head for _, head, _ in rows if head), None)
    whole = tuple(columns.values())
    show_table([{**row, **({shown: value} if shown else {})} for row, _, value in rows], whole=whole)
    failed = len(sweep.pending)
    if failed:
        say(f"{failed} of {len(rows)} points failed; to run them again: hidl resume {sweep.id}")

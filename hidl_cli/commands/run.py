"""``hidl run``: plan and follow a run, and report its verdict; ``hidl shell``: work at a terminal in an allocation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, VerboseOption, complete_workloads, with_options
from hidl_cli.commands.completion import complete_matrix
from hidl_cli.commands.own_program import describe_environment, describe_program, program_after
from hidl_cli.plan.options import RunOptions, RunRequest

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.runs.checkpoint_interval import CheckpointInterval
    from hidl_cli.runs.forecast import Expected, PointForecast
    from hidl_cli.site.schema import Site
from hidl_cli.commands.arguments import complete_stacks

# ``hidl run --estimate``.


def show_estimate(plan: Plan, interval: CheckpointInterval | None, *, json: bool) -> None:
    """Print a run's maximum cost and predicted metrics, executing only the workload's prediction module."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.plan.cost import estimate, format_estimate
    from hidl_cli.site.load import load_site

    site = load_site(plan.site)
    found = estimate(plan, site.partition(plan.partition))
    forecasts = _forecasts(plan, site.interconnect)
    if json:
        fields: dict[str, Any] = {"site": plan.site, "partition": plan.partition, **asdict(found)}
        fields["checkpoint_interval"] = interval and asdict(interval)
        emit_json("hidl.estimate/1", **fields, forecasts=[each.to_json() for each in forecasts])
        return
    lines = [*format_estimate(found, plan), *([interval.describe()] if interval else [])]
    write("\n".join(lines) + "\n")
    for each in forecasts:
        _show(each)


def _forecasts(plan: Plan, interconnect: str | None) -> list[PointForecast]:
    """Return the predictions of the workload's prediction module.

    The list is empty if the workload has no such module, if it runs on GPUs, or if its stack is not installed.
    """
    from hidl_cli.commands.render import say
    from hidl_cli.runs.forecast import find_python, forecast_plan

    if plan.workload.estimate is None:
        return []
    if plan.device == "gpu":
        say("speed not predicted: predictions are only available for CPUs (--device cpu)", style="yellow")
        return []
    python = find_python(plan)
    if python is None:
        say(f"speed not predicted: this requires stack {plan.stack} (run: hidl install {plan.stack})", style="yellow")
        return []
    return forecast_plan(plan, python, interconnect)


def _show(forecast: PointForecast) -> None:
    from hidl_cli.commands.render import show_table, write
    from hidl_cli.plan.parameters import format_parameters

    write(f"\n{format_parameters(forecast.point) if forecast.point else 'expected'}:\n")
    rows = [
        {"nodes": placement.nodes, "ranks": placement.ranks, **dict(_columns(expected))}
        for placement, expected in zip(forecast.placements, forecast.forecast.expected, strict=True)
        if expected.problem is None
    ]
    if rows:
        show_table(rows, whole=rows[0])
    for placement, expected in zip(forecast.placements, forecast.forecast.expected, strict=True):
        if expected.problem is not None:
            write(f"{placement.ranks} rank(s): {expected.problem}\n")
    lines = [f"  {name}: {value}" for name, value in forecast.forecast.assumptions.items()]
    errors = [f"  {error}" for error in forecast.forecast.known_errors]
    write("\n".join(["assumptions:", *lines, *(["known errors:", *errors] if errors else [])]) + "\n")


def _columns(expected: Expected) -> Iterator[tuple[str, str]]:
    for figure in expected.figures:
        yield (
            f"{figure.name}\n({figure.unit})",
            f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}",
        )


@with_options(RunOptions)
def run(
    ctx: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="Workload to run (see hidl workload list); to run your own program, pass it after -- instead.",
            autocompletion=complete_workloads,
        ),
    ] = None,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE,VALUE", help="More values for --matrix.", autocompletion=complete_matrix),
    ] = None,
    *,
    options: RunOptions,
    save_tuning: Annotated[
        bool,
        typer.Option(
            "--save-tuning",
            help="Save the best setting of a --matrix over mpi.VARIABLE in your site file.",
            rich_help_panel="Study options",
        ),
    ] = False,
    as_jobs: Annotated[
        bool,
        typer.Option(
            "--as-jobs", help="Run each combination of --matrix as a separate job.", rich_help_panel="Study options"
        ),
    ] = False,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--at-most",
            min=1,
            help="With --as-jobs: number of jobs at the same time (default: no limit, or 1 without a batch system).",
            rich_help_panel="Study options",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the run and report its verdict.")] = True,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Show the maximum cost, the limits and, for some workloads, the predicted speed; run nothing.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script without running it.")] = False,
    verbose: VerboseOption = 0,
    json: JsonOption = False,
) -> None:
    """Run a workload or your own program, study how it scales (--scale), or compare parameters (--matrix)."""
    from hidl_cli.commands.render import check_before_run, emit_json, say
    from hidl_cli.launch.hosts import on_hosts
    from hidl_cli.launch.options import clock
    from hidl_cli.plan.input_files import find_stdin
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import prepare
    from hidl_cli.site.load import load_site

    command = program_after(ctx, workload, further=() if options.matrix else further or ())
    options = replace(
        options,
        workload=workload,
        command=command,
        matrix=[*(options.matrix or ()), *(further or ())],
        stdin=find_stdin() if command else None,
    )
    options.require_program()
    machine = on_hosts(load_site(options.site), options.named_hosts)
    _check_sweep_options(as_jobs=as_jobs, at_most=at_most, save_tuning=save_tuning)
    if as_jobs:
        options = replace(options, new_job=True)
    plan = prepare(RunRequest.of(options, hypothetical=dry_run or estimate), machine)
    plan, interval = _with_interval(plan, machine)
    if as_jobs and not estimate:
        _run_as_jobs(options, plan, machine, at_most=at_most, wait=wait, dry_run=dry_run, json=json)
        return
    if save_tuning:
        _require_comparison(plan, wait=wait)
    if estimate:
        show_estimate(plan, interval, json=json)
        _warn(plan)
        return
    if dry_run:
        _show_dry_run(plan, machine, json=json, check=options.check)
        return
    _warn(plan)
    if options.check:
        check_before_run(plan, machine, hypothetical=False)
    from hidl_cli.commands.follow import follow_and_judge, started
    from hidl_cli.commands.tuning import save_winner

    with started(plan, job_script(plan)) as record:
        say(f"run {record.id} in {record.directory}")
        if plan.allocation.time_limit is not None:
            say(f"time limit {clock(plan.allocation.time_limit)}", style="dim")
        if interval is not None and interval.seconds is not None:
            say(interval.describe(), style="dim")
        if not wait:
            if json:
                emit_json("hidl.run/1", run=record.id, directory=str(record.directory), state="PENDING")
            else:
                say(f"to follow it, run: hidl resume {record.id}")
            return
        _show_launches(plan)
        follow_and_judge(record, plan, json=json)
        if save_tuning:
            save_winner(record.id)


def _with_interval(plan: Plan, site: Site) -> tuple[Plan, CheckpointInterval | None]:
    """Return the plan with its checkpoint interval if its run may take several jobs."""
    if not plan.max_jobs:
        return plan, None
    from hidl_cli.runs.checkpoint_interval import choose_interval, with_interval

    interval = choose_interval(plan, site)
    return with_interval(plan, interval), interval


def _check_sweep_options(*, as_jobs: bool, at_most: int | None, save_tuning: bool) -> None:
    """Raise ``UsageError`` for options that conflict with --as-jobs or require it."""
    from hidl_cli.errors import UsageError

    if at_most is not None and not as_jobs:
        raise UsageError("--at-most requires --as-jobs", hint="omit it, or add --as-jobs")
    if as_jobs and save_tuning:
        raise UsageError("--as-jobs and --save-tuning cannot be combined", hint="omit one of them")


def _run_as_jobs(
    options: RunOptions, whole: Plan, machine: Site, *, at_most: int | None, wait: bool, dry_run: bool, json: bool
) -> None:
    """Run each point of the matrix, which is a combination of parameter values, as a job.

    Args:
        options: The options, with the matrix.
        whole: Plan of the whole matrix.
        machine: The site.
        at_most: Maximum number of jobs at the same time; None for the default.
        wait: Follow the jobs to their ends.
        dry_run: Print the job script of the first point instead.
        json: Print JSON.
    """
    from hidl_cli.commands.render import check_before_run, say
    from hidl_cli.commands.sweeps import point_plans, start_sweep
    from hidl_cli.errors import UsageError

    if at_most is not None and options.after:
        raise UsageError("--at-most cannot be combined with --after", hint="omit one of them")
    if at_most is not None and "--after" in machine.policies.forbidden:
        raise UsageError(f"--at-most is not allowed on {machine.name}, which forbids --after", hint="omit --at-most")
    plans = point_plans(options, whole, machine, hypothetical=dry_run)
    first = plans[0][1]
    if dry_run:
        say(f"{len(plans)} jobs; the first one:")
        _show_dry_run(first, machine, json=json, check=options.check)
        return
    _warn(first)
    if options.check:
        check_before_run(first, machine, hypothetical=False)
    start_sweep(plans, at_most=at_most, wait=wait, json=json)


def _show_dry_run(plan: Plan, machine: Site, *, json: bool, check: bool) -> None:
    from hidl_cli.commands.render import check_before_run, emit_json, write
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.redaction import Secrets

    script, document = job_script(plan), plan.to_json()
    secrets = Secrets().learn(document)
    if json:
        emit_json("hidl.run-plan/1", plan=secrets.hide_document(document), script=secrets.hide(script))
    else:
        write(secrets.hide(script))
    _warn(plan)
    if check:
        check_before_run(plan, machine, hypothetical=True)


def _require_comparison(plan: Plan, *, wait: bool) -> None:
    """Raise ``UsageError`` if the run cannot produce a setting for ``--save-tuning`` to save."""
    from hidl_cli.errors import UsageError
    from hidl_cli.tuning.judge import compared_variables
    from hidl_workloads.repetitions import LEAST

    if not any(map(compared_variables, plan.points)):
        raise UsageError("--save-tuning requires variables to compare", hint="add --matrix mpi.VARIABLE=VALUE,VALUE")
    if plan.repetitions < LEAST:
        raise UsageError(f"--save-tuning requires {LEAST} repetitions", hint=f"use --repeat {LEAST} or more")
    if not wait:
        raise UsageError(
            "--save-tuning and --no-wait cannot be combined", hint="to save it later, run: hidl tuning save RUN"
        )


def _warn(plan: Plan) -> None:
    from hidl_cli.commands.render import say
    from hidl_cli.plan.planning import warnings_of

    for warning in warnings_of(plan):
        say(warning, style="yellow")


def _show_launches(plan: Plan) -> None:
    """Print the tuning with its origin, and a launch line for each size.

    If values of variables are compared, there is a launch line for each of them. The lines are abbreviated without
    ``-v``.
    """
    from hidl_cli.commands.render import say, say_detail
    from hidl_cli.redaction import redact_variable
    from hidl_cli.tuning.judge import compared_variables

    if plan.user_environment is not None:
        describe_environment(plan)
    if plan.workload.program.directory is not None:
        describe_program(plan)
    for setting in plan.tuning:
        say(f"{setting.name}={redact_variable(setting.name, setting.value)}  ({setting.origin})", style="dim")
    varied = any(map(compared_variables, plan.points))
    shown = {(step.size, plan.points.index(step.point) if varied else 0): step for step in reversed(plan.steps)}
    for _, step in sorted(shown.items(), key=lambda item: item[0]):
        say_detail(f"$ {plan.command_line(step)}", otherwise=f"$ {plan.summary(step)}")


_OPTIONS = (
    *("site", "nodes", "hosts", "hostfile", "share_hosts", "ranks_per_node", "threads", "device", "launcher", "mpi"),
    *("tuning", "partition", "account", "qos", "constraint", "reservation", "prefix", "time", "check"),
)
_HELP = {
    "ranks_per_node": "MPI ranks per node started by `ranks` (default: one per GPU, otherwise 1).",
    "time": "Time limit of the shell; 10 means ten minutes.",
}


@with_options(RunOptions, only=_OPTIONS, help=_HELP)
def shell(
    stack: Annotated[str, typer.Argument(help="Stack to activate.", autocompletion=complete_stacks)],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Program to run instead of a shell."),
    ] = None,
    *,
    options: RunOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script without running it.")] = False,
    json: JsonOption = False,
) -> None:
    """Open a shell in an allocation with an active stack, or run a command at this terminal (-- jupyter lab).

    In the shell, `ranks PROGRAM` starts MPI ranks. Leaving the shell ends everything started in it. The exit status is
    that of the shell.
    """
    from pathlib import Path

    from hidl_cli import terminal
    from hidl_cli.commands.render import check_before_run, emit_json, say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.launch.hosts import on_hosts
    from hidl_cli.quoting import sh_line
    from hidl_cli.schedulers import scheduler
    from hidl_cli.shell.session import open_shell, plan_shell, render_files, require_terminal
    from hidl_cli.site.load import load_site

    program = command[1:] if command and command[0] == "--" else command or []
    has_terminal = terminal.attached()
    if json and not dry_run:
        raise UsageError("--json requires --dry-run", hint="add --dry-run")
    if not dry_run:
        require_terminal(program, terminal=has_terminal)
    machine = on_hosts(load_site(options.site), options.named_hosts)
    plan = plan_shell(
        RunRequest.of(replace(options, stack=stack, new_job=True), hypothetical=dry_run), machine, program
    )
    files = render_files(plan, machine, program, Path.cwd())
    for warning in plan.warnings:
        say(warning, style="yellow")
    if dry_run:
        line = scheduler(plan.scheduler).interactive(plan.header, plan.run, terminal=True) or ()
        if json:
            emit_json("hidl.shell-plan/1", plan=plan.to_json(), command=list(line), script=files.script)
        else:
            say(f"$ {sh_line(line)}", style="dim")
            write(files.script)
    if options.check:
        check_before_run(plan, machine, hypothetical=dry_run)
    if not dry_run:
        status = open_shell(plan, files, terminal=has_terminal)
        if status:
            raise typer.Exit(status)

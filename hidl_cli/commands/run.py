"""``hidl run``: plan, submit, follow and judge a run."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import (
    TIME,
    HostfileOption,
    HostsOption,
    JsonOption,
    NoCheckOption,
    PrefixOption,
    ShareHostsOption,
    SiteOption,
    VerboseOption,
    complete_stacks,
    complete_workloads,
    limit_in_seconds,
)
from hidl_cli.commands.completion import (
    complete_launchers,
    complete_libraries,
    complete_matrix,
    complete_parameters,
    complete_partitions,
    complete_tuning,
)
from hidl_cli.commands.own_program import WorkGrowth, describe_environment, describe_program, program_after

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.runs.forecast import Expected, PointForecast
    from hidl_cli.site.schema import Site


class Device(str, Enum):
    """The hardware that a run computes on."""

    cpu = "cpu"
    gpu = "gpu"


NodesOption = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes (default: 1, or all of --hosts).")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads per rank (default: the node's cores divided among its ranks)."),
]
DeviceOption = Annotated[
    Device | None,
    typer.Option(
        "--device",
        help="Compute on CPUs or GPUs (default: GPUs if the nodes have some). With cpu, no GPUs are requested, and a "
        "partition without GPUs is preferred unless --partition is given.",
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="Launcher of the ranks (default: the site's first that supports the MPI library).",
        autocompletion=complete_launchers,
    ),
]
MpiOption = Annotated[
    str | None,
    typer.Option(
        "--mpi",
        help="MPI library of the site, or `stack` for the stack's own (default: the site's default).",
        autocompletion=complete_libraries,
    ),
]
TuneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        "--mv2",
        metavar="NAME=VALUE",
        help="Set a run-time variable of the MPI library (MV2_*, MPIR_CVAR_*, OMPI_MCA_*, ...); repeatable.",
        autocompletion=complete_tuning,
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition", "-p", help="Partition (default: the site's).", autocompletion=complete_partitions),
]
AccountOption = Annotated[str | None, typer.Option("--account", "-A", help="Account to charge.")]
QosOption = Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")]
ConstraintOption = Annotated[str | None, typer.Option("--constraint", "-C", help="Required node features.")]
ReservationOption = Annotated[str | None, typer.Option("--reservation", help="Reservation to use.")]


# ``hidl run --estimate``.


def show_estimate(plan: Plan, *, json: bool) -> None:
    """Print the maximum cost and the predicted metrics of a run; executes only the workload's prediction module."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.plan.planning import estimate, format_estimate
    from hidl_cli.site.load import load_site

    site = load_site(plan.site)
    found = estimate(plan, site.partition(plan.partition))
    forecasts = _forecasts(plan, site.interconnect)
    if json:
        fields: dict[str, Any] = {"site": plan.site, "partition": plan.partition, **asdict(found)}
        emit_json("hidl.estimate/1", **fields, forecasts=[each.to_json() for each in forecasts])
        return
    write("\n".join(format_estimate(found, plan)) + "\n")
    for each in forecasts:
        _show(each)


def _forecasts(plan: Plan, interconnect: str | None) -> list[PointForecast]:
    """Return the predictions of the workload's module; empty if it has none or its stack is not installed."""
    from hidl_cli.commands.render import say
    from hidl_cli.runs.forecast import find_python, forecast_plan

    if plan.workload.estimate is None:
        return []
    if plan.device == "gpu":
        say("no prediction of the speed: it is only available for CPUs (--device cpu)", style="yellow")
        return []
    python = find_python(plan)
    if python is None:
        say(f"no prediction of the speed: it requires the stack (hidl install {plan.stack})", style="yellow")
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


class Suite(str, Enum):
    """Suite of micro-benchmarks: OMB's own in C, or hidl's in Python."""

    c = "c"
    python = "python"
    both = "both"


class Baseline(str, Enum):
    """Baseline of the study."""

    single = "single"
    copies = "copies"
    history = "history"


def run(
    ctx: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="Workload to run (see hidl workload list); to run your own program, give it after -- instead.",
            autocompletion=complete_workloads,
        ),
    ] = None,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE,VALUE", help="More values for --matrix.", autocompletion=complete_matrix),
    ] = None,
    *,
    site: SiteOption = None,
    nodes: NodesOption = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    share_hosts: ShareHostsOption = False,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="MPI ranks per node (default: one per GPU, else as the workload requires)."),
    ] = None,
    threads: ThreadsOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of the workload; repeatable.",
            autocompletion=complete_parameters,
        ),
    ] = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="Sweep parameter values; all combinations run in one allocation. More NAME=VALUE,... may follow.",
            autocompletion=complete_matrix,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REGEX",
            help="Metric in the program's output, matched by a regular expression with one group; "
            "NAME\\[unit=s,take=last]= sets options. Studies judge the first metric. Repeatable.",
        ),
    ] = None,
    suite: Annotated[
        Suite | None, typer.Option(help="For benchmarks in C and Python: the suite to run, or both.")
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="Stack to run on (default: the workload's).", autocompletion=complete_stacks),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Run in your own venv or conda environment; --stack then provides the MPI library."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Run a scaling study over sizes: 1,2,4 (nodes; ranks on the local site), ranks=1,2 or nodes=1,2.",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Interleaved repetitions (default: 5 with --scale or --matrix, else 1).")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0.01, max=2.0, help="Target efficiency (default: the workload's).")
    ] = None,
    scaling: Annotated[
        WorkGrowth | None,
        typer.Option(help="For your own program: whether its work is the same at all sizes (strong) or grows (weak)."),
    ] = None,
    no_mpi: Annotated[
        bool,
        typer.Option("--no-mpi", help="For your own program without MPI: skip the check of MPI's world."),
    ] = False,
    baseline: Annotated[
        Baseline | None,
        typer.Option(
            help="Baseline of the study: its smallest step (single), concurrent runs on each node (copies, which also "
            "finds slow nodes; the default from 4 nodes on), or earlier runs (history)."
        ),
    ] = None,
    until_settled: Annotated[
        bool, typer.Option("--until-settled", help="Stop a study as soon as the verdict is settled.")
    ] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="Largest half-width of an interval for a verdict, such as 5% (default: any)."
        ),
    ] = None,
    device: DeviceOption = None,
    launcher: LauncherOption = None,
    mpi: MpiOption = None,
    tune: TuneOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    qos: QosOption = None,
    constraint: ConstraintOption = None,
    reservation: ReservationOption = None,
    prefix: PrefixOption = None,
    time: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar=TIME, help="Time limit of the whole job; 10 means ten minutes."),
    ] = None,
    save_tuning: Annotated[
        bool,
        typer.Option(
            "--save-tuning",
            help="Save the best setting of a --matrix over mpi.VARIABLE in your site file.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the run and report its verdict.")] = True,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Show the maximum cost, the limits and, for some workloads, the predicted speed; run nothing.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script without running it.")] = False,
    no_check: NoCheckOption = False,
    verbose: VerboseOption = 0,
    json: JsonOption = False,
) -> None:
    """Run a workload or your own program, study how it scales (--scale), or compare parameters (--matrix)."""
    from hidl_cli.api.options import reject_program_options, with_suite
    from hidl_cli.commands.render import check_before_run, emit_json, say
    from hidl_cli.launch.hosts import named_hosts, on_hosts
    from hidl_cli.launch.placement import Asked, clock
    from hidl_cli.plan.input_files import find_stdin
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import RunRequest, prepare, read_precision
    from hidl_cli.site.load import load_site

    command = program_after(ctx, workload, further=() if matrix else further or ())
    if not command:
        reject_program_options(scaling=scaling is not None, uses_mpi=not no_mpi, metrics=bool(metric))
    assignments, axes = with_suite(suite.value if suite else None, set_ or (), [*(matrix or ()), *(further or ())])
    named = named_hosts(hosts, hostfile)
    machine = on_hosts(load_site(site), named)
    plan = prepare(
        RunRequest(
            workload=workload or "",
            command=command,
            scaling=scaling.value if scaling else None,
            uses_mpi=not no_mpi,
            site=site,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            threads=threads,
            assignments=assignments,
            matrix=axes,
            metrics=metric or (),
            stack=stack,
            env=env,
            scale=scale,
            repeat=repeat,
            target=target,
            baseline=baseline.value if baseline else None,
            until_settled=until_settled,
            precision=read_precision(precision),
            launcher=launcher,
            mpi=mpi,
            device=device.value if device else None,
            stdin=find_stdin() if command else None,
            tuning=tune or (),
            prefix=prefix,
            asked=Asked(
                partition=partition,
                time_limit=limit_in_seconds(time),
                account=account,
                qos=qos,
                constraint=constraint,
                reservation=reservation,
                hosts=named,
                share_hosts=share_hosts,
            ),
            hypothetical=dry_run or estimate,
        ),
        machine,
    )
    if save_tuning:
        _require_comparison(plan, wait=wait)
    if estimate:
        show_estimate(plan, json=json)
        _warn(plan)
        return
    if dry_run:
        _show_dry_run(plan, machine, json=json, check=not no_check)
        return
    _warn(plan)
    if not no_check:
        check_before_run(plan, machine, hypothetical=False)
    from hidl_cli.commands.follow import follow_and_judge, started
    from hidl_cli.commands.tuning import save_winner

    with started(plan, job_script(plan)) as record:
        say(f"run {record.id} in {record.directory}")
        if plan.allocation.time_limit is not None:
            say(f"time limit {clock(plan.allocation.time_limit)}", style="dim")
        if not wait:
            if json:
                emit_json("hidl.run/1", run=record.id, directory=str(record.directory), state="PENDING")
            else:
                say(f"to follow it: hidl resume {record.id}")
            return
        _show_launches(plan)
        follow_and_judge(record, plan, json=json)
        if save_tuning:
            save_winner(record.id)


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
    """Raise ``UsageError`` if the run cannot end with a setting to save."""
    from hidl_cli.errors import UsageError
    from hidl_cli.tuning.judge import compared_variables
    from hidl_workloads.repetitions import LEAST

    if not any(map(compared_variables, plan.points)):
        raise UsageError(
            "--save-tuning requires a comparison of variables", hint="add --matrix mpi.VARIABLE=VALUE,VALUE"
        )
    if plan.repetitions < LEAST:
        raise UsageError(f"--save-tuning requires {LEAST} repetitions", hint=f"use --repeat {LEAST} or more")
    if not wait:
        raise UsageError("--save-tuning and --no-wait cannot be combined", hint="save it later: hidl tuning save RUN")


def _warn(plan: Plan) -> None:
    from hidl_cli.api.options import warnings_of
    from hidl_cli.commands.render import say

    for warning in warnings_of(plan):
        say(warning, style="yellow")


def _show_launches(plan: Plan) -> None:
    """Print the tuning with its origin, and a launch line for each size and compared variable (in full with ``-v``)."""
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

"""``hidl run``: plan, submit, follow, judge."""

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
from hidl_cli.commands.own_program import Scaling, describe_environment, describe_program, program_after

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.runs.forecast import Expected, PointForecast
    from hidl_cli.site.schema import Site


class Device(str, Enum):
    """What a run computes on."""

    cpu = "cpu"
    gpu = "gpu"


NodesOption = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes (default: 1; with --hosts all of them).")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of each rank (default: the node's cores divided among its ranks)."),
]
DeviceOption = Annotated[
    Device | None,
    typer.Option(
        "--device",
        help="Compute on processors or GPUs (default: GPUs if the nodes have some); cpu requests no GPUs, and takes a "
        "partition without them if there is one and --partition names none.",
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="Starts the ranks (default: the site's first that serves the MPI library).",
        autocompletion=complete_launchers,
    ),
]
MpiOption = Annotated[
    str | None,
    typer.Option(
        "--mpi",
        help="One of the site's MPI libraries, or `stack`: the stack's own (default: the site's default).",
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
AccountOption = Annotated[str | None, typer.Option("--account", "-A", help="The project that pays.")]
QosOption = Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")]
ConstraintOption = Annotated[str | None, typer.Option("--constraint", "-C", help="Node features.")]
ReservationOption = Annotated[str | None, typer.Option("--reservation", help="A reservation.")]


# The words after ``--`` of ``hidl run``: a program of the user's own.


# ``hidl run --estimate``: what a run costs at most, and what its metrics are expected to be.


def show_estimate(plan: Plan, *, json: bool) -> None:
    """Print both; nothing is run but the workload's own module that tells its metrics."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.plan.planning import estimate, format_estimate
    from hidl_cli.site.load import load_site

    site = load_site(plan.site)
    found = estimate(plan, site.partition(plan.partition))
    told = _forecasts(plan, site.interconnect)
    if json:
        fields: dict[str, Any] = {"site": plan.site, "partition": plan.partition, **asdict(found)}
        emit_json("hidl.estimate/1", **fields, forecasts=[each.to_json() for each in told])
        return
    write("\n".join(format_estimate(found, plan)) + "\n")
    for each in told:
        _show(each)


def _forecasts(plan: Plan, interconnect: str | None) -> list[PointForecast]:
    """What the workload's module tells; nothing where it has none, or where the stack that it needs is not there."""
    from hidl_cli.commands.render import say
    from hidl_cli.runs.forecast import find_python, forecast_plan

    if plan.workload.estimate is None:
        return []
    if plan.device == "gpu":
        say("the speed can be predicted for processors only: --device cpu", style="yellow")
        return []
    python = find_python(plan)
    if python is None:
        say(f"the speed cannot be predicted without its stack: hidl install {plan.stack}", style="yellow")
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
    write("\n".join(["assuming:", *lines, *(["how wrong it can be:", *errors] if errors else [])]) + "\n")


def _columns(expected: Expected) -> Iterator[tuple[str, str]]:
    for figure in expected.figures:
        yield (
            f"{figure.name}\n({figure.unit})",
            f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}",
        )


class Suite(str, Enum):
    """Whose micro-benchmarks: OMB's own in C, or hidl's."""

    c = "c"
    python = "python"
    both = "both"


class Baseline(str, Enum):
    """What a study is held against."""

    single = "single"
    copies = "copies"
    history = "history"


def run(
    ctx: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="A workload (hidl workload list). A program of your own stands after -- in its place.",
            autocompletion=complete_workloads,
        ),
    ] = None,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE,VALUE", help="More of --matrix.", autocompletion=complete_matrix),
    ] = None,
    *,
    site: SiteOption = None,
    nodes: NodesOption = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    share_hosts: ShareHostsOption = False,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="MPI ranks on each node (default: one for each GPU, else what the workload needs)."),
    ] = None,
    threads: ThreadsOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a parameter of the workload; repeatable.",
            autocompletion=complete_parameters,
        ),
    ] = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="Compare values of parameters: all combinations, in turn in one allocation; more words may follow.",
            autocompletion=complete_matrix,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REGEX",
            help="A metric from the program's output, by a regular expression with one group; "
            "NAME\\[unit=s,take=last]= sets more. Studies judge the first. Repeatable.",
        ),
    ] = None,
    suite: Annotated[
        Suite | None, typer.Option(help="For benchmarks with a twin in C: which one, or both in one run.")
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="The stack to run on (default: the workload's).", autocompletion=complete_stacks),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Run in this venv or conda environment of your own; --stack names the MPI library's."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="A scaling study: sizes such as 1,2,4 (nodes; on the local site ranks), ranks=1,2 or nodes=1,2.",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Repetitions, interleaved (default: 5 with --scale or --matrix, else 1).")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0.01, max=2.0, help="Efficiency to reach (default: the workload's).")
    ] = None,
    scaling: Annotated[
        Scaling | None,
        typer.Option(
            help="For a program of your own: its work is the same at all sizes (strong), or grows with them (weak)."
        ),
    ] = None,
    no_mpi: Annotated[
        bool,
        typer.Option("--no-mpi", help="For a program of your own that uses no MPI: skip the check of MPI's world."),
    ] = False,
    baseline: Annotated[
        Baseline | None,
        typer.Option(
            help="What a study is held against: its smallest step (single), as many runs of one node at once as there "
            "are nodes (copies: shows slow nodes; the default from 4 nodes on), or earlier runs (history)."
        ),
    ] = None,
    until_settled: Annotated[
        bool, typer.Option("--until-settled", help="End a study with the first repetition that settles it.")
    ] = False,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="Largest half width of the intervals for a verdict, such as 5% (default: any)."
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
        str | None, typer.Option("--time", "-t", metavar=TIME, help="Time limit of the whole job: 10 is ten minutes.")
    ] = None,
    save_tuning: Annotated[
        bool,
        typer.Option(
            "--save-tuning",
            help="Write the run-time variables that win a --matrix of mpi.VARIABLE into your site file.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end and judge it.")] = True,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Show the maximum cost, whether limits allow it and, for some workloads, the predicted speed; "
            "run nothing.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and touch nothing.")] = False,
    no_check: NoCheckOption = False,
    verbose: VerboseOption = 0,
    json: JsonOption = False,
) -> None:
    """Run a workload or a program of your own, study how it scales (--scale), or compare parameters (--matrix)."""
    from hidl_cli.api.options import refuse_options_of_programs, with_suite
    from hidl_cli.commands.render import check_before_run, emit_json, say
    from hidl_cli.launch.hosts import named_hosts, on_hosts
    from hidl_cli.launch.placement import Asked, clock
    from hidl_cli.plan.input_files import find_stdin
    from hidl_cli.plan.job_script import job_script
    from hidl_cli.plan.prepare import RunRequest, prepare, read_precision
    from hidl_cli.site.load import load_site

    command = program_after(ctx, workload, further=() if matrix else further or ())
    if not command:
        refuse_options_of_programs(scaling=scaling is not None, uses_mpi=not no_mpi, metrics=bool(metric))
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
    from hidl_cli.commands.following import follow_and_judge, started
    from hidl_cli.commands.tuning import save_winner

    with started(plan, job_script(plan)) as record:
        say(f"run {record.id} in {record.directory}")
        if plan.allocation.time_limit is not None:
            say(f"time limit {clock(plan.allocation.time_limit)}", style="dim")
        if not wait:
            if json:
                emit_json("hidl.run/1", run=record.id, directory=str(record.directory), state="PENDING")
            else:
                say(f"follow it with: hidl resume {record.id}")
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
    """Raise ``UsageError`` if the run cannot end with a winner to save."""
    from hidl_cli.errors import UsageError
    from hidl_cli.tuning.judge import compared_variables
    from hidl_workloads.repetitions import LEAST

    if not any(map(compared_variables, plan.points)):
        raise UsageError("--save-tuning requires a comparison of variables", hint="--matrix mpi.VARIABLE=VALUE,VALUE")
    if plan.repetitions < LEAST:
        raise UsageError(f"--save-tuning requires {LEAST} repetitions", hint=f"--repeat {LEAST} or more")
    if not wait:
        raise UsageError("--save-tuning and --no-wait cannot be combined", hint="later: hidl tuning save RUN")


def _warn(plan: Plan) -> None:
    from hidl_cli.api.options import warnings_of
    from hidl_cli.commands.render import say

    for warning in warnings_of(plan):
        say(warning, style="yellow")


def _show_launches(plan: Plan) -> None:
    """Print the tuning and its origin, and one launch line for each size and compared variable (``-v``: in full)."""
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

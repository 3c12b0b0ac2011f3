"""``hidl run``: plan, submit, follow, judge."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    NoCheckOption,
    PrefixOption,
    SiteOption,
    complete_stacks,
    complete_workloads,
    seconds,
)
from hidl_cli.commands.completers import (
    complete_launchers,
    complete_libraries,
    complete_matrix,
    complete_parameters,
    complete_partitions,
    complete_tuning,
)

if TYPE_CHECKING:
    from hidl_cli.runs.plan import Plan


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
    workload: Annotated[
        str, typer.Argument(help="A workload (hidl workload list).", autocompletion=complete_workloads)
    ],
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE,VALUE", help="More of --matrix.", autocompletion=complete_matrix),
    ] = None,
    *,
    site: SiteOption = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="MPI ranks on each node (default: one for each GPU, else what the workload needs)."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each rank (default: the node's cores divided among its ranks)."),
    ] = None,
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
    suite: Annotated[
        Suite | None, typer.Option(help="For benchmarks with a twin in C: which one, or both in one run.")
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="The stack to run on (default: the workload's).", autocompletion=complete_stacks),
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
    launcher: Annotated[
        str | None,
        typer.Option(
            help="Who starts the ranks (default: the site's first that serves the MPI library).",
            autocompletion=complete_launchers,
        ),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            help="One of the site's MPI libraries, or `stack`: the stack's own (default: the site's default).",
            autocompletion=complete_libraries,
        ),
    ] = None,
    mv2: Annotated[
        list[str] | None,
        typer.Option(
            "--mv2",
            "--tune",
            metavar="NAME=VALUE",
            help="Set a run-time variable of the MPI library; repeatable.",
            autocompletion=complete_tuning,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", help="Partition (default: the site's).", autocompletion=complete_partitions),
    ] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="The project that pays.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")] = None,
    constraint: Annotated[str | None, typer.Option("--constraint", "-C", help="Node features.")] = None,
    reservation: Annotated[str | None, typer.Option(help="A reservation.")] = None,
    prefix: PrefixOption = None,
    time: Annotated[
        str | None, typer.Option("--time", "-t", metavar="[[[D-]HH:]MM:]SS", help="Time limit of the whole job.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end and judge it.")] = True,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Tell what it costs at most, whether limits admit it and, for some workloads, how fast it will be; "
            "run nothing.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and touch nothing.")] = False,
    no_check: NoCheckOption = False,
    json: JsonOption = False,
) -> None:
    """Run a workload, study how it scales (--scale), or compare parameters (--matrix)."""
    from hidl_cli.commands.findings import check_before_run
    from hidl_cli.commands.render import emit_json, say, write
    from hidl_cli.errors import UsageError
    from hidl_cli.launch.allocation import Asked
    from hidl_cli.launch.script import job_script
    from hidl_cli.record.run import create
    from hidl_cli.runs.follow import scheduler_of
    from hidl_cli.runs.prepare import Request, prepare
    from hidl_cli.site.load import load_site

    if further and not matrix:
        raise UsageError(f"{' '.join(further)!r} is more than one workload", hint="--set NAME=VALUE, or --matrix")
    if suite is Suite.both:
        matrix = ["suite=c,python", *(matrix or ())]
    elif suite is not None:
        set_ = [*(set_ or ()), f"suite={suite.value}"]
    machine = load_site(site)
    plan = prepare(
        Request(
            workload=workload,
            site=site,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            threads=threads,
            assignments=set_ or (),
            matrix=[*(matrix or ()), *(further or ())],
            stack=stack,
            scale=scale,
            repeat=repeat,
            target=target,
            baseline=baseline.value if baseline else None,
            until_settled=until_settled,
            launcher=launcher,
            mpi=mpi,
            tuning=mv2 or (),
            prefix=prefix,
            asked=Asked(
                partition=partition,
                time_limit=seconds(time) if time else None,
                account=account,
                qos=qos,
                constraint=constraint,
                reservation=reservation,
            ),
            hypothetical=dry_run or estimate,
        ),
        machine,
    )
    if estimate:
        from hidl_cli.commands.estimating import show_estimate

        show_estimate(plan, json=json)
        _warn(plan)
        return
    script = job_script(plan)
    if dry_run:
        if json:
            emit_json("hidl.run-plan/1", plan=plan.to_json(), script=script)
        else:
            write(script)
        _warn(plan)
        if not no_check:
            check_before_run(plan, machine, hypothetical=True)
        return
    _warn(plan)
    if not no_check:
        check_before_run(plan, machine, hypothetical=False)
    record = create(plan, script)
    scheduler_of(plan).submit(record, time_limit=plan.allocation.time_limit)
    say(f"run {record.id} in {record.directory}")
    if not wait:
        if json:
            emit_json("hidl.run/1", run=record.id, directory=str(record.directory), state="PENDING")
        else:
            say(f"follow it with: hidl resume {record.id}")
        return
    _show_launches(plan)
    from hidl_cli.commands.following import follow_and_judge

    follow_and_judge(record, plan, json=json)


def _warn(plan: Plan) -> None:
    from hidl_cli.commands.render import say

    for warning in plan.warnings:
        say(warning, style="yellow")
    if plan.missing:
        say(f"site {plan.site} demands {' and '.join(plan.missing)}, which a run needs and this lacks", style="yellow")


def _show_launches(plan: Plan) -> None:
    """Print the tuning and where it comes from, and one launch line for each size: what a person would type."""
    from hidl_cli.commands.render import say

    for setting in plan.tuning:
        say(f"{setting.name}={setting.value}  ({setting.origin})", style="dim")
    shown = {step.size: step for step in reversed(plan.steps)}
    for step in sorted(shown.values(), key=lambda step: step.size):
        say(f"$ {plan.command_line(step)}", style="dim")

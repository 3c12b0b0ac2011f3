"""``hidl shell``: work at a terminal in an allocation with an active stack."""

from __future__ import annotations

from typing import Annotated

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
    complete_stacks,
    limit_in_seconds,
)
from hidl_cli.commands.run import (
    AccountOption,
    ConstraintOption,
    DeviceOption,
    LauncherOption,
    MpiOption,
    NodesOption,
    PartitionOption,
    QosOption,
    ReservationOption,
    ThreadsOption,
    TuneOption,
)


def shell(
    stack: Annotated[str, typer.Argument(help="Stack to activate.", autocompletion=complete_stacks)],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Program to run instead of a shell."),
    ] = None,
    *,
    site: SiteOption = None,
    nodes: NodesOption = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    share_hosts: ShareHostsOption = False,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="MPI ranks per node started by `ranks` (default: one per GPU, else 1)."),
    ] = None,
    threads: ThreadsOption = None,
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
        str | None, typer.Option("--time", "-t", metavar=TIME, help="Time limit of the shell; 10 means ten minutes.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job script without running it.")] = False,
    no_check: NoCheckOption = False,
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
    from hidl_cli.launch.hosts import named_hosts, on_hosts
    from hidl_cli.launch.placement import Asked
    from hidl_cli.plan.prepare import RunRequest
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
    named = named_hosts(hosts, hostfile)
    machine = on_hosts(load_site(site), named)
    plan = plan_shell(
        RunRequest(
            workload="",
            site=site,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            threads=threads,
            stack=stack,
            launcher=launcher,
            mpi=mpi,
            device=device.value if device else None,
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
            hypothetical=dry_run,
        ),
        machine,
        program,
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
    if not no_check:
        check_before_run(plan, machine, hypothetical=dry_run)
    if not dry_run:
        status = open_shell(plan, files, terminal=has_terminal)
        if status:
            raise typer.Exit(status)

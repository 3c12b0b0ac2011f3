"""``hidl shell``: work at a terminal in an allocation with an active stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, complete_stacks, with_options
from hidl_cli.plan.options import RunOptions, RunRequest

_OPTIONS = (
    *("site", "nodes", "hosts", "hostfile", "share_hosts", "ranks_per_node", "threads", "device", "launcher", "mpi"),
    *("tuning", "partition", "account", "qos", "constraint", "reservation", "prefix", "time", "check"),
)
_HELP = {
    "ranks_per_node": "MPI ranks per node started by `ranks` (default: one per GPU, else 1).",
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

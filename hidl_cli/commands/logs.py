"""``hidl logs``: what a run printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import RunArgument

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print its stderr, not its stdout.")] = False,
) -> None:
    """Print what a run's program printed."""
    from hidl_cli.commands.render import say
    from hidl_cli.record.run import find
    from hidl_cli.runs.follow import read_log

    record = find(run)
    for chunk in read_log(record, record.stderr if stderr else record.stdout, follow=follow):
        typer.echo(chunk, nl=False)
    if not stderr and not _size(record.stdout) and _size(record.stderr):
        say(f"it printed nothing, but complained: hidl logs --stderr {record.id}")


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0

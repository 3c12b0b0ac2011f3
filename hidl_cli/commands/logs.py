"""``hidl logs``: what a run printed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import RunArgument
from hidl_cli.errors import HidlError

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print its stderr, not its stdout.")] = False,
) -> None:
    """Print what a run's program printed."""
    from hidl_cli.commands.render import say
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record.run import find
    from hidl_cli.redaction import shown_output
    from hidl_cli.runs.follow import read_log

    record = find(run)
    with suppress(HidlError):  # the log of a run of another version is shown too
        plan_of(record)  # whose secrets its program may print
    for log in (record.stdout, record.stderr):  # what one stream tells to be a secret is hidden in the other too
        shown_output(_end(log))
    begun = b""
    for chunk in read_log(record, record.stderr if stderr else record.stdout, follow=follow):
        text = begun + chunk
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        _echo(text[:whole])
        begun = text[whole:]
    _echo(begun)
    if not stderr and not _size(record.stdout) and _size(record.stderr):
        say(f"it printed nothing, but complained: hidl logs --stderr {record.id}")


def _echo(data: bytes) -> None:
    """Print a part of a log that ends with a line."""
    from hidl_cli.redaction import shown_output

    typer.echo(shown_output(data.decode(errors="surrogateescape")).encode(errors="surrogateescape"), nl=False)


def _end(log: Path) -> str:
    """Return the last 256 KiB of a log; "" if it does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, _size(log) - (256 << 10)))
            return file.read().decode(errors="surrogateescape")
    except OSError:
        return ""


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0

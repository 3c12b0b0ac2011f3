"""How commands speak: data on stdout, prose on stderr; rich for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from hidl_cli.inputs.problems import visible
from hidl_cli.redaction import remember, shown

if TYPE_CHECKING:
    from rich.console import Console

    from hidl_cli.errors import HidlError


@cache
def stdout() -> Console:
    """The console for data."""
    return _console(highlight=False, emoji=False)


@cache
def stderr() -> Console:
    """The console for progress and prose."""
    return _console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def _console(**options: Any) -> Console:
    """Return a console that hides secrets before it wraps lines, in cells of tables too."""
    from rich.console import Console
    from rich.text import Text

    class Redacting(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            try:
                super().print(*objects, **options)
            except OSError:
                if not self.stderr:
                    raise
                # A disk that is full takes no progress. The command goes on: its result and exit code matter more.
                sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")

        def render(self, renderable: Any, options: Any = None) -> Any:
            if isinstance(renderable, Text) and (clean := shown(renderable.plain)) != renderable.plain:
                look = {name: getattr(renderable, name) for name in ("style", "justify", "overflow", "no_wrap", "end")}
                renderable = Text(clean, **look)
            return super().render(renderable, options)

    return Redacting(**options)


@dataclass
class _Detail:
    """How much commands report. ``level``: the number of ``-v``; ``log``: the file named by ``HIDL_LOG``."""

    level: int = 0
    log: TextIO | None = None

    def note(self, text: str) -> None:
        """Write a line to the log, without secrets."""
        if self.log is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        try:
            self.log.write("".join(f"{now} {line}\n" for line in printable(shown(text)).splitlines()))
            self.log.flush()
        except OSError as error:
            name, self.log = self.log.name, None
            say(f"warning: log {name} ends here: {error.strerror}", style="yellow")


_DETAIL = _Detail()


def report_more(level: int) -> None:
    """Report full launch lines (1) and every process that is started (2)."""
    from hidl_cli import process
    from hidl_cli.quoting import sh_line

    if level > 1 > _DETAIL.level - 1:
        process.observers.append(lambda argv: say_detail(f"$ {sh_line(argv)}", level=2))
    _DETAIL.level = max(level, _DETAIL.level)


def open_log() -> None:
    """Open the log named by ``HIDL_LOG``, if any; ``MissingPrecondition`` if it cannot be written."""
    name = os.environ.get("HIDL_LOG")
    if not name or _DETAIL.log is not None:
        return
    from hidl_cli import __version__, process
    from hidl_cli.errors import MissingPrecondition
    from hidl_cli.quoting import sh_line

    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        hint = "set HIDL_LOG to a file that you may write, or unset it"
        raise MissingPrecondition(f"log {name} cannot be written: {error.strerror}", hint=hint) from error
    _DETAIL.log = os.fdopen(descriptor, "a", encoding="utf-8")
    _DETAIL.note(f"hidl {__version__}: {sh_line(sys.argv)}")
    process.observers.append(lambda argv: _DETAIL.note(f"$ {sh_line(argv)}") if _DETAIL.level < 2 else None)


def say_detail(text: str, *, level: int = 1, otherwise: str | None = None) -> None:
    """Print ``text`` in the detail of ``-v`` (2: ``-vv``), else ``otherwise``; the log gets ``text``."""
    if _DETAIL.level >= level:
        stderr().print(printable(text), style="dim", markup=False)
    elif otherwise is not None:
        stderr().print(printable(otherwise), style="dim", markup=False)
    _DETAIL.note(text)


def printable(text: str) -> str:
    """``text`` with control characters (but line ends and tabs) made visible, so that no terminal obeys them."""
    return "".join(c if c in "\n\t" else visible(c) for c in text)


def say(text: str, *, style: str | None = None) -> None:
    """Print a line of prose to stderr; nothing in it is markup."""
    stderr().print(printable(text), style=style, markup=False)
    _DETAIL.note(text)


def write(text: str) -> None:
    """Print data to stdout, without secrets, and for a terminal with control characters made visible."""
    text = shown(text)
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def emit_json(schema: str, **fields: Any) -> None:
    """Print the one JSON document of a command."""
    remember(fields)
    text = json.dumps({"schema": schema, **shown(fields)}, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def show_error(error: HidlError) -> None:
    """Tell what failed and what to do next, on stderr."""
    from hidl_cli.errors import InvalidInput, ProcessFailed

    console = stderr()
    _DETAIL.note(f"error: {error.message}")
    console.print("[bold red]error:[/] ", end="")
    console.print(printable(error.message), markup=False)
    if isinstance(error, InvalidInput):
        from hidl_cli.inputs.problems import render

        for problem in error.problems:
            console.print(render(problem), markup=False)
    if isinstance(error, ProcessFailed):
        from hidl_cli.quoting import sh_line

        console.print(printable(f"  command: {sh_line(error.command)}"), markup=False)
        if error.output.strip():
            console.print(printable(error.output.strip()), markup=False, style="dim")
    if error.hint:
        console.print("[bold]next:[/] ", end="")
        console.print(printable(error.hint), markup=False)


def show_interrupt() -> None:
    """Tell that the user ended the command, unless the terminal is gone."""
    with suppress(OSError):
        say("interrupted")

"""How an installation is followed: a spinner on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.commands.render import printable, say
from hidl_cli.redaction import shown
from hidl_cli.stack.downloads import Downloads

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from hidl_cli.stack.order import Progress


def progress() -> Progress:
    """The one that suits stderr."""
    return _Terminal() if sys.stderr.isatty() else _Lines()


# What make says of a build that CMake has set up: how far it is, and which target is complete.
_PERCENT = re.compile(r"\[ *\d+%\] .*")
_TARGET = re.compile(r"\[ *\d+%\] Built target .*")
_POLL_SECONDS = 1.0


class _Lines:
    """One line for each step as it begins, and for each target or package that is built; no rich is imported for it."""

    def say(self, text: str) -> None:
        sys.stderr.write(printable(shown(text)) + "\n")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        self.say(title)
        if log is None:
            yield
            return
        over = threading.Event()
        teller = threading.Thread(target=self._tell_targets, args=(log, _size(log), over), daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()

    def _tell_targets(self, log: Path, told: int, over: threading.Event) -> None:
        """Say each target that make completes, each package of Spack's, and each download of uv's, as its line comes.

        ``told`` is how much of the log is old.
        """
        from hidl_cli.stack.providers.spack.output import done

        downloads = Downloads()
        while True:
            last = over.wait(_POLL_SECONDS)
            new = _read(log, told)
            whole = new[: new.rfind(b"\n") + 1]
            told += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                before, downloads = downloads, downloads.after(line)
                if downloads.done - before.done:
                    self.say(f"  {line.strip().lower()} ({downloads})")
                elif _TARGET.fullmatch(line):
                    self.say(f"  {line}")
                elif package := done(line):
                    self.say(f"  built {package}")
            if last:
                return


class _Terminal:
    """A spinner with the step's time and the last line of its log; then one line with how long it took."""

    def say(self, text: str) -> None:
        say(text, style="yellow")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        from rich.console import Group
        from rich.live import Live
        from rich.spinner import Spinner

        from hidl_cli.commands.render import stderr

        began = time.monotonic()
        old = _size(log) if log is not None else 0

        class Status:
            """What the spinner says, updated for each frame; while uv downloads, a bar of the bytes is below it."""

            def __rich__(self) -> RenderableType:
                spinner.update(text=_status(title, time.monotonic() - began, log))
                lines = [] if log is None else _read(log, old).decode("utf-8", "replace").splitlines()
                downloads = Downloads().after_all(lines)
                return Group(spinner, _bar(downloads)) if downloads.under_way else spinner

        spinner = Spinner("dots")
        with Live(Status(), console=stderr(), transient=True, refresh_per_second=10):
            yield
        stderr().print(f"[green]done[/] {title} [dim]{time.monotonic() - began:.1f} s")


def _bar(downloads: Downloads) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    row.add_row("", ProgressBar(total=downloads.bytes, completed=downloads.done_bytes, width=30), str(downloads))
    return row


def _status(title: str, seconds: float, log: Path | None) -> Text:
    from rich.text import Text

    return Text.assemble(
        f"{title}  ", (f"{seconds:.0f} s  {_last_line(log)}", "dim"), overflow="ellipsis", no_wrap=True
    )


def _last_line(log: Path | None) -> str:
    """What the step's program said last: uv names each download, make how far it is (warnings between do not count)."""
    if log is None:
        return ""
    tail = _read(log, max(0, _size(log) - 65536)).decode("utf-8", "replace")
    lines = [line.strip() for line in tail.split("\n") if line.strip()]
    percent = next((line for line in reversed(lines) if _PERCENT.fullmatch(line)), None)
    return shown(printable(percent or (lines[-1] if lines else "")))


def _size(log: Path) -> int:
    return log.stat().st_size if log.is_file() else 0


def _read(log: Path, begin: int) -> bytes:
    """The log from ``begin`` on; nothing where there is none yet."""
    if not log.is_file():
        return b""
    with log.open("rb") as file:
        file.seek(begin)
        return file.read()

"""How an installation is followed: a spinner on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.commands.render import printable, say

if TYPE_CHECKING:
    from rich.text import Text

    from hidl_cli.stack.install import Progress


def progress() -> Progress:
    """The one that suits stderr."""
    return _Terminal() if sys.stderr.isatty() else _Lines()


class _Lines:
    """One line for each step as it begins; nothing is imported for it."""

    def say(self, text: str) -> None:
        sys.stderr.write(printable(text) + "\n")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        self.say(title)
        yield


class _Terminal:
    """A spinner with the step's time and the last line of its log; then one line with how long it took."""

    def say(self, text: str) -> None:
        say(text, style="yellow")

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        from rich.live import Live
        from rich.spinner import Spinner

        from hidl_cli.commands.render import stderr

        began = time.monotonic()

        class Status:
            """What the spinner says, asked anew for each frame."""

            def __rich__(self) -> Spinner:
                spinner.update(text=_status(title, time.monotonic() - began, log))
                return spinner

        spinner = Spinner("dots")
        with Live(Status(), console=stderr(), transient=True, refresh_per_second=10):
            yield
        stderr().print(f"[green]done[/] {title} [dim]{time.monotonic() - began:.1f} s")


def _status(title: str, seconds: float, log: Path | None) -> Text:
    from rich.text import Text

    return Text.assemble(
        f"{title}  ", (f"{seconds:.0f} s  {_last_line(log)}", "dim"), overflow="ellipsis", no_wrap=True
    )


def _last_line(log: Path | None) -> str:
    """What the step's program said last: uv names each download."""
    from hidl_cli.stack.pip_settings import redact

    if log is None or not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return redact(printable(next((line.strip() for line in reversed(lines) if line.strip()), "")))

"""Record what commands print on a terminal, as a picture (SVG): python tools/record_terminal.py FILE COMMAND...

Each COMMAND is a word of its own, in quotes; they run one after the other, for real, and the picture shows them with
all that they print. Lines that are longer than the terminal is wide are cut. Without commands: those of the README
(in a home where nothing is installed yet, HOME=...). The picture holds no font and refers to none.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

_COMMANDS = (
    "hidl install mpi",
    "hidl run kmeans --scale 1,2",
)
_WIDTH = 92
_MOVING = re.compile(r"(?:\x1b\[\??[0-9;]*[A-HJKSTfhl]|\r)+")  # what moves or hides the cursor
_SPINNER = re.compile(r"(?:\x1b\[[0-9;]*m)*[\u2800-\u28ff]")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main(file: str, *commands: str) -> None:
    """Run the commands (or those of the README), and write the picture."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for command in commands or _COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            for line in _printed(command).splitlines():
                console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=True)
    picture = console.export_svg(title="hidl", theme=DIMMED_MONOKAI)
    Path(file).write_text(_FONT.sub("", picture).replace("Fira Code", "ui-monospace"), encoding="utf-8")


def _printed(command: str) -> str:
    """Return what a command prints on a terminal; of a line that changes in place, its last state.

    The home directory is called ~.
    """
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, _WIDTH))
    with subprocess.Popen(
        [shutil.which("bash") or "bash", "-c", command],
        env=os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
    ):
        os.close(its)
        printed = b""
        with suppress(OSError):  # of a terminal whose programs have ended
            while chunk := os.read(ours, 1 << 16):
                printed += chunk
                sys.stdout.buffer.write(chunk)
    os.close(ours)
    states = (_MOVING.split(line) for line in printed.decode().replace("\r\n", "\n").split("\n"))
    shown = (next((state for state in reversed(found) if state.strip()), "") for found in states)
    lines = (line for line in shown if not _SPINNER.match(line))  # the line that says `done` follows
    return "\n".join(lines).replace(str(Path.home()), "~")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Record what commands print on a terminal, as a picture (SVG): python tools/record_terminal.py FILE COMMAND...

Each COMMAND is a word of its own, in quotes; they run one after the other, for real, and the picture shows them with
all that they print. Lines that are longer than the terminal is wide are cut. Without commands: those of the README
(in a home where nothing is installed yet, HOME=...). The picture holds no font and refers to none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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
    """Both streams of a command, as on a terminal without moving parts; the home directory is called ~."""
    environment = os.environ | {
        "COLUMNS": str(_WIDTH),
        "FORCE_COLOR": "1",
        "TTY_INTERACTIVE": "0",
        "PYTHONUNBUFFERED": "1",  # both streams go to one place, in order
    }
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="")
    kept = (line for line in done.stdout.splitlines() if not _MOVING.fullmatch(line))
    return _MOVING.sub("", "\n".join(kept)).replace(str(Path.home()), "~")


if __name__ == "__main__":
    main(*sys.argv[1:])

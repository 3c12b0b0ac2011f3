"""A tutorial as a program: its command blocks run in one shell, and what they print compared with what stands there.

What is run: in every block of the kind ``console``, each line that begins with ``$`` (lines that begin with ``>`` go on
with it). What stands below it, up to the next, is what it prints, on stdout and stderr: but for what may vary
(``volatile``), and for ``...``, which stands for lines that the page leaves out, or for a part of a line.

A block with a title, such as ``python title="pi.py"``, is a file, written where the reader is. Blocks of the kinds
``bash``, ``sh`` and ``shell`` are refused, so that no command escapes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tutorials.volatile import normal, renamed
from tests.waiting import patience

_FENCE = re.compile(r"^```(\w*)(.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_END = "\x1e"  # what no command prints


@dataclass(frozen=True)
class Command:
    """One command: its number, its lines for the shell, what it prints, and which lines of the page those are."""

    number: int
    text: str
    printed: str
    lines: slice


@dataclass(frozen=True)
class WrittenFile:
    """A file that the reader writes."""

    path: str
    text: str


Step = Command | WrittenFile


def steps(page: str) -> list[Step]:
    """What a page asks the reader to do, in order; ``ValueError`` for a block that would not be run."""
    found: list[Step] = []
    lines, at = page.splitlines(), 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        at += 1
        if not opening:
            continue
        begin, (kind, rest) = at, opening.groups()
        while lines[at] != "```":
            at += 1
        if title := _TITLE.search(rest):
            found.append(WrittenFile(title[1], "\n".join(lines[begin:at]) + "\n"))
        elif kind == "console":
            found += _commands(lines, begin, at, sum(isinstance(step, Command) for step in found))
        elif kind in ("bash", "sh", "shell", ""):
            raise ValueError(f"line {begin}: a block of the kind {kind!r} is not run; say console, or text")
        at += 1
    return found


def _commands(lines: Sequence[str], begin: int, end: int, number: int) -> list[Command]:
    starts = [at for at in range(begin, end) if lines[at].startswith("$ ")]
    if not starts or starts[0] != begin:
        raise ValueError(f"line {begin + 1}: a console block begins with a command")
    found = []
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        first = start + 1
        while first < stop and lines[first].startswith("> "):
            first += 1
        text = "\n".join(line[2:] for line in lines[start:first])
        found.append(Command(number + len(found), text, "\n".join(lines[first:stop]), slice(first, stop)))
    return found


def run(page: str, home: Path, environment: Mapping[str, str], *, timeout: float) -> list[str]:
    """Do all that the page asks, in one shell that begins in ``home``; what each command printed."""
    script = ""
    for step in steps(page):
        if isinstance(step, WrittenFile):
            (home / step.path).parent.mkdir(parents=True, exist_ok=True)
            (home / step.path).write_text(step.text, encoding="utf-8")
        else:
            # The next command can ask for this one's status.
            script += f"{step.text}\n_status=$?; printf '{_END}'; (exit $_status)\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=home,
        env={**environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patience(timeout),
        check=False,
    )
    return [_shown(text) for text in done.stdout.split(_END)[:-1]]


def _shown(text: str) -> str:
    """As a page shows it: without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def is_as_shown(shown: str, printed: str, home: Path) -> bool:
    """Is what was printed what the page shows?"""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in normal(shown, home).split("\n")
    )
    return re.fullmatch(pattern, normal(printed, home) + "\n") is not None


def _lines(printed: str, home: Path) -> list[str]:
    return renamed(printed, home).split("\n") if printed else []


def rewritten(page: str, printed: Sequence[str], home: Path) -> str:
    """The page with what was printed now in the place of what differs in more than may vary."""
    lines = page.splitlines()
    commands = [step for step in steps(page) if isinstance(step, Command)]
    for command, now in reversed(list(zip(commands, printed, strict=True))):
        if not is_as_shown(command.printed, now, home):
            # A printed line that begins as a command does would be one, the next time: it is indented.
            lines[command.lines] = [f" {line}" if line.startswith(("$ ", "> ")) else line for line in _lines(now, home)]
    return "\n".join(lines) + "\n"

"""What pages tell people to type: each command and each option is one that hidl has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hidl_cli.commands.app import command_line
from tests.conftest import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    *sorted(REPOSITORY.glob("docs/**/*.md")),
    *sorted(REPOSITORY.glob("libs/*/README.md")),
    REPOSITORY / "benchmarks" / "README.md",
]
_BLOCK = re.compile(r"^( *)```(?:console)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(hidl [^`]+)`(?!`)")
_END = {"|", "||", "&&", ";", ">", ">>", "&", "2>&1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_and_options_are_hidls_own(page: Path) -> None:
    wrong = [f"{line}: {what}" for line in _commands(page.read_text()) if (what := _fault(line))]
    assert wrong == []


def _commands(text: str) -> Iterator[str]:
    """What begins with hidl, in blocks after a prompt, and in the text."""
    for block in _BLOCK.findall(text):
        for line in re.findall(r"^ *[$#] (.*(?:\\\n.*)*)", block[1], re.MULTILINE):
            parts = re.split(r"[;|] *|\$\(", line.replace("\\\n", " "))
            yield from (part for part in parts if part.startswith("hidl "))
    yield from (" ".join(found.split()) for found in _INLINE.findall(text))


def _fault(line: str) -> str | None:
    """What hidl does not have of it."""
    command, before = _hidl(), ""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:  # a part of a line
        words = line.split()[1:]
    for word in (word.strip("[]") for word in words):
        if word in _END or word == "--" or command.name == "exec":
            return None
        below = getattr(command, "commands", {})
        if word in below:
            command = below[word]
        elif word.startswith("-") and word != "-" and word.partition("=")[0] not in _options(command):
            return f"{command.name} has no {word}"
        elif below and re.fullmatch(r"[a-z]+", word) and not before.startswith("-"):
            return f"{command.name} has no command {word}"
        before = word
    return None


@cache
def _hidl() -> Any:
    return get_command(command_line())


def _options(command: Any) -> set[str]:
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own | {"-h", "--help", "--version", "--install-completion", "--show-completion"}


@pytest.mark.parametrize("line", ["hidl instal mpi", "hidl run x --node 2", "hidl site shwo", "hidl run -z"])
def test_what_hidl_has_not_is_found(line: str) -> None:
    assert _fault(line)

"""The page of commands, out of the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from hidl_cli.commands.app import command_line

from .markdown import code, plain, table

_HEAD = """\
# Commands

All commands and options, as `hidl COMMAND --help` tells them. Data goes to stdout, progress and prose to stderr;
`--json` prints one document ([which](documents.md)); what the shell is told is one of [these codes](exit-codes.md).

Every command takes `-h` and `--help`.

"""
_BOUNDS = re.compile(r"\s*\\?\[([^][]*)\]$")  # some versions of typer escape them for rich


def pages() -> dict[str, str]:
    """The page."""
    return {"reference/commands.md": _HEAD + "".join(_command(get_command(command_line()), "hidl", None))}


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    """A command with its options, and after it the commands below it."""
    context = command.context_class(command, info_name=name.rsplit(maxsplit=1)[-1], parent=parent)
    yield f"## {name}\n\n{_prose(command.help or '')}\n\n"
    below = getattr(command, "commands", {})
    if below:
        yield table(("command", "does"), [(_link(f"{name} {word}"), _first(one)) for word, one in below.items()])
    else:
        yield f"```text\n{' '.join(command.get_usage(context).split()).removeprefix('Usage: ')}\n```\n\n"
    records = [found for one in command.params if (found := one.get_help_record(context))]
    if records:
        yield table(("argument or option", "means", ""), map(_record, records))
    for word, one in below.items():
        yield from _command(one, f"{name} {word}", context)


def _record(record: tuple[str, str]) -> tuple[str, str, str]:
    """One row: the words, what they mean, and default and bounds, which stand in brackets at the end."""
    words, text = record
    found = _BOUNDS.search(text)
    return code(words), plain(text[: found.start()] if found else text), plain(found[1] if found else "")


def _first(command: Any) -> str:
    return _prose((command.help or "").split("\n\n")[0])


def _prose(text: str) -> str:
    return plain(" ".join(text.replace("``", "`").split()))


def _link(name: str) -> str:
    return f"[{code(name)}](#{name.replace(' ', '-')})"

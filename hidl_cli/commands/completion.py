"""What a shell is answered when it asks how a command line could go on.

The scripts that the shells get (``hidl --install-completion``) are typer's; the answers are made here, because typer's
load what formats help for terminals, which takes longer than people wait, and because bash takes ``NAME=VALUE`` for
three words. A shell asks with ``_HIDL_COMPLETE=complete_<shell>`` and

==== ===================================================================================================
bash ``COMP_WORDS``, the words with line ends between them, and ``COMP_CWORD``, which of them is meant
zsh  ``_TYPER_COMPLETE_ARGS``, the line up to the cursor
fish the same, and ``_TYPER_COMPLETE_FISH_ACTION``: ``get-args``, or ``is-args`` (are there any? else files)
==== ===================================================================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VARIABLE = "_HIDL_COMPLETE"


@dataclass(frozen=True)
class Candidate:
    """One way to go on: the whole word, and what it means."""

    word: str
    help: str = ""


def answer(environment: Mapping[str, str]) -> tuple[str, int]:
    """What the shell that asks in ``environment`` is told on stdout, and the exit status.

    Nothing where a file or directory cannot be read: a message would fall into the line that somebody types.
    """
    from hidl_cli.errors import HidlError

    try:
        return _SHELLS[environment[VARIABLE].removeprefix("complete_")](environment)
    except (HidlError, OSError):
        return "", 1


def asked(environment: Mapping[str, str]) -> bool:
    """Does a shell ask?"""
    return environment.get(VARIABLE, "").removeprefix("complete_") in _SHELLS


def candidates(words: Sequence[str], begun: str) -> list[Candidate]:
    """How the word that begins so may go on, after these words (without ``hidl`` itself)."""
    from typer.main import get_command

    from hidl_cli.commands.app import command_line

    command: Any = get_command(command_line(words[0] if words else None))
    rest = list(words)
    while at := next((at for at, word in enumerate(rest, 1) if word in _commands(command)), None):
        command, rest = _commands(command)[rest[at - 1]], rest[at:]
    if "--" in rest:
        return []  # a program and its arguments: the shell completes files
    by_name = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts) if name[0] == "-"}
    context = command.context_class(command, info_name=command.name)
    option, arguments = _given(command, by_name, rest, context.params)
    name, sign, value = begun.partition("=")
    if sign and name in by_name:
        return [Candidate(f"{name}={one.word}", one.help) for one in _values(by_name[name], context, value)]
    if option is not None:
        return _values(option, context, begun)
    if begun.startswith("-"):
        return _beginning(begun, _options(command, rest))
    below = [Candidate(name, _first_line(one.help)) for name, one in _commands(command).items() if not one.hidden]
    return _beginning(begun, below) or (_values(arguments[0], context, begun) if arguments else [])


def _commands(command: Any) -> dict[str, Any]:
    """The commands below it."""
    return getattr(command, "commands", {})


def _given(
    command: Any, by_name: Mapping[str, Any], words: Sequence[str], values: dict[str, str]
) -> tuple[Any, list[Any]]:
    """Read ``words`` into ``values``; the option that waits for its value (or None), and the arguments to come.

    Click's own reading of a line loads what checks values, which takes too long here.
    """
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    waiting = None
    for word in words:
        name, sign, value = word.partition("=")
        if waiting is not None:
            values[waiting.name], waiting = word, None
        elif name in by_name:
            if sign:
                values[by_name[name].name] = value
            elif not by_name[name].is_flag:
                waiting = by_name[name]
        elif arguments and not word.startswith("-"):
            values[arguments[0].name] = word
            arguments = arguments if arguments[0].nargs == -1 else arguments[1:]
    return waiting, arguments


def _options(command: Any, given: Sequence[str]) -> list[Candidate]:
    """The names of its options, but for those that are given and count once."""
    found = []
    for one in command.params:
        names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
        if not getattr(one, "hidden", False) and (one.multiple or not {*names} & {*given}):
            found += [Candidate(name, one.help or "") for name in names]
    return [*found, Candidate("--help", "Show this message and exit.")]


def _values(parameter: Any, context: Any, begun: str) -> list[Candidate]:
    """What the parameter itself proposes; nothing where it takes files, which shells know better."""
    found = parameter.shell_complete(context, begun)
    return [Candidate(str(one.value), one.help or "") for one in found if one.type == "plain"]


def _beginning(begun: str, found: Sequence[Candidate]) -> list[Candidate]:
    return [one for one in found if one.word.startswith(begun)]


def _first_line(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ")


def _bash(environment: Mapping[str, str]) -> tuple[str, int]:
    words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    joined = list(_rejoined(words))
    begun = _plain(joined[-1])
    found = candidates([_plain(word) for word in joined[1:-1]], begun)
    # Bash replaces what follows the last `=` alone.
    kept = len(begun.rpartition("=")[0]) + 1 if "=" in begun else 0
    return "".join(f"{one.word[kept:]}\n" for one in found), 0


def _rejoined(words: Sequence[str]) -> Iterator[str]:
    """The words of a line that bash has divided at each ``=``."""
    current = ""
    for word in words:
        if current and not (word.startswith("=") or current.endswith("=")):
            yield current
            current = ""
        current += word
        if not word:
            break
    yield current


def _line(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The words before the one that is meant, without ``hidl``, and that one."""
    line = environment["_TYPER_COMPLETE_ARGS"]
    words = [_plain(word) for word in line.split()]
    return (words[1:], "") if line[-1:].isspace() else (words[1:-1], words[-1])


def _zsh(environment: Mapping[str, str]) -> tuple[str, int]:
    found = candidates(*_line(environment))
    if not found:
        return "_files\n", 0
    described = "\n".join(_described(one) for one in found)
    return f"_arguments '*: :(({described}))'\n", 0


def _described(one: Candidate) -> str:
    """As ``_arguments`` takes it, within single quotes."""
    word, text = (
        part.replace("'", "''").replace('"', '""').replace("$", r"\$").replace("`", r"\`").replace(":", r"\\:")
        for part in (one.word, " ".join(one.help.split()))
    )
    return f'"{word}":"{text}"' if text else f'"{word}"'


def _fish(environment: Mapping[str, str]) -> tuple[str, int]:
    found = candidates(*_line(environment))
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if found else 1
    return "".join("\t".join(filter(None, (one.word, " ".join(one.help.split())))) + "\n" for one in found), 0


def _plain(word: str) -> str:
    """The word without its quotes; one that is not closed yet is taken as it is."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word.lstrip("'\"")


_SHELLS: dict[str, Callable[[Mapping[str, str]], tuple[str, int]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

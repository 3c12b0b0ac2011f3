"""The words that a workload's program is started with, made from the values of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hidl_cli.runs.workload import Program, Value

#: ``{name}``: the value. ``{name?word}``: the word, which falls away where the value is false, 0 or empty.
PLACEHOLDER = re.compile(r"\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(\?(?P<word>[^{}]+))?\}")


def command(program: Program, values: Mapping[str, Value]) -> list[str]:
    """The program's own words; where it gives ``arguments``, parameters are put into these too."""
    words = program.command or []
    return list(words) if program.arguments is None else list(_filled(words, values))


def arguments(program: Program, values: Mapping[str, Value]) -> list[str]:
    """The words after them: one ``--name=value`` for each parameter in order, or what ``arguments`` says."""
    if program.arguments is None:
        return [f"--{name}={_text(value)}" for name, value in values.items()]
    return list(_filled(program.arguments, values))


def _filled(words: list[str], values: Mapping[str, Value]) -> Iterator[str]:
    for word in words:
        optional = PLACEHOLDER.fullmatch(word)
        if optional and optional["word"]:
            if values[optional["name"]]:
                yield optional["word"]
        else:
            yield PLACEHOLDER.sub(lambda found: _text(values[found["name"]]), word)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

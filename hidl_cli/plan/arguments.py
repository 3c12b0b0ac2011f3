"""The command line of a workload's program, from the values of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hidl_cli.plan.workload import Parameter, Program, Value

#: ``{name}``: the value. ``{name?word}``: the word, which falls away where the value is false, 0 or empty.
PLACEHOLDER = re.compile(r"\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(\?(?P<word>[^{}]+))?\}")


#: Names that stand for the size of a step in the words of a program that has ``arguments``, unless a parameter has the
#: name.
SIZES = ("ranks", "nodes")


def command(program: Program, values: Mapping[str, Value]) -> list[str]:
    """Return the program's own words; if it has ``arguments``, placeholders in these words are filled too."""
    words = program.command or []
    return list(words) if program.arguments is None else list(_filled(words, values, {}))


def arguments(program: Program, values: Mapping[str, Value], parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the words after them: ``--name=value`` for each parameter, or what ``arguments`` says.

    ``parameters``: the workload's, some of whose values may stand for several ``words``.
    """
    if program.arguments is None:
        return [f"--{name}={_text(value)}" for name, value in values.items()]
    return list(_filled(program.arguments, values, parameters))


def _filled(words: list[str], values: Mapping[str, Value], parameters: Mapping[str, Parameter]) -> Iterator[str]:
    for word in words:
        alone = PLACEHOLDER.fullmatch(word)
        name = alone["name"] if alone and alone["name"] in values else None
        if alone and name and alone["word"]:
            if values[name]:
                yield alone["word"]
        elif name and name in parameters and (several := parameters[name].words.get(str(values[name]))) is not None:
            yield from several
        else:
            yield PLACEHOLDER.sub(lambda found: _filled_in(found, values), word)


def _filled_in(found: re.Match[str], values: Mapping[str, Value]) -> str:
    """Return the value; braces around anything else stay, as in an awk program of the user's own."""
    return found[0] if found["word"] or found["name"] not in values else _text(values[found["name"]])


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

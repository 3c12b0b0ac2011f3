"""The command line of a program: ``--name=value`` words, one for each field of a dataclass.

The dataclasses are those of ``hidl_workloads.parameters``, which is generated from recipes/workloads. argparse is not
used: it takes the value of ``--note=--`` away.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, get_args, get_type_hints

Parameters = TypeVar("Parameters")

_BOOLEANS = {"true": True, "false": False}
_DECLARATION = "declaration"
_HELP = ("-h", "--help")


@dataclass(frozen=True)
class Declaration:
    """Properties of a parameter that a recipe declares beside its type and default; None means no limit or no unit."""

    help: str
    unit: str | None
    min: float | None
    max: float | None


def parameter(
    default: Any, *, help: str = "", unit: str | None = None, min: float | None = None, max: float | None = None
) -> Any:
    """Declare a field of a dataclass as a parameter; ``min`` and ``max`` are the limits of a finite number."""
    return field(default=default, metadata={_DECLARATION: Declaration(help, unit, min, max)})


def declaration(kind: type[Any], name: str) -> Declaration:
    """Return the declaration of a parameter."""
    found: Declaration = _fields(kind)[name].metadata[_DECLARATION]
    return found


def parse(kind: type[Parameters], words: Sequence[str]) -> Parameters:
    """Read ``--name=value`` words into the dataclass ``kind``; each of its fields has a default.

    ``--help`` prints the parameters and exits. Raises ``ValueError`` naming the invalid word and what is valid.
    """
    if set(_HELP) & set(words):
        sys.stdout.write("".join(f"{line}\n" for line in describe(kind)))
        sys.exit(0)
    types = get_type_hints(kind)
    declared = _fields(kind)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals or name not in declared:
            valid = " ".join(f"--{each.name}={each.default}" for each in declared.values())
            raise ValueError(f"unknown argument {word!r}; valid arguments with their defaults: {valid}")
        values[name] = _read(name, text, types[name], declared[name].metadata[_DECLARATION])
    return kind(**values)


def describe(kind: type[Any]) -> Iterator[str]:
    """Yield a line for each parameter of ``kind``: its name and default, unit, choices and help."""
    types = get_type_hints(kind)
    for each in _fields(kind).values():
        declaration: Declaration = each.metadata[_DECLARATION]
        choices = get_args(types[each.name]) or (tuple(_BOOLEANS) if types[each.name] is bool else ())
        notes = [f"one of {', '.join(choices)}"] if choices else []
        notes += [f"in {declaration.unit}"] if declaration.unit else []
        default = str(each.default).lower() if types[each.name] is bool else each.default
        note = f" ({'; '.join(notes)})" if notes else ""
        yield f"  {f'--{each.name}={default}':<30} {declaration.help}{note}".rstrip()


def _fields(kind: type[Any]) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(kind)}


def _read(name: str, text: str, kind: Any, declaration: Declaration) -> Any:
    choices = get_args(kind)
    if choices or kind is bool:
        valid = choices or tuple(_BOOLEANS)
        if text not in valid:
            raise ValueError(f"{name} must be one of {', '.join(valid)}, not {text!r}")
        return text if choices else _BOOLEANS[text]
    try:
        value = kind(text)
    except ValueError as error:
        raise ValueError(f"{name} must be {'an integer' if kind is int else 'a number'}, not {text!r}") from error
    low, high = declaration.min, declaration.max
    if low is not None and not (math.isfinite(value) and value >= low):
        raise ValueError(f"{name} must be {low} or more, not {value}")
    if high is not None and not (math.isfinite(value) and value <= high):
        raise ValueError(f"{name} must be {high} or less, not {value}")
    return value

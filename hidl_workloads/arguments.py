"""The command line of a program: ``--name=value`` words, one for each field of a dataclass.

argparse is not used: it takes the value of ``--note=--`` away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, TypeVar, get_args, get_type_hints

Parameters = TypeVar("Parameters")

_LEAST = "least"
_BOOLEANS = {"true": True, "false": False}


def number(default: float, *, least: float) -> Any:
    """Declare a field that holds a finite number of at least ``least``."""
    return field(default=default, metadata={_LEAST: least})


def parse(kind: type[Parameters], words: Sequence[str]) -> Parameters:
    """Read ``--name=value`` words into the dataclass ``kind``; each of its fields has a default.

    Raises ``ValueError`` that says which word is wrong and what is valid.
    """
    types = get_type_hints(kind)
    declared = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals or name not in declared:
            valid = " ".join(f"--{each.name}={each.default}" for each in declared.values())
            raise ValueError(f"no such argument: {word!r}; valid, with their defaults: {valid}")
        values[name] = _read(name, text, types[name], declared[name].metadata.get(_LEAST))
    return kind(**values)


def _read(name: str, text: str, kind: Any, least: float | None) -> Any:
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
    if least is not None and not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be {least} or more, not {value}")
    return value

"""Plain scalars by the core schema of YAML 1.2 (section 10.3.2).

PyYAML's own rules are those of YAML 1.1, where a wall time ``48:00:00`` is the number 172800, ``no`` is false,
``1_000`` is 1000 and ``012`` is 10: values that no author of a site file means.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

MAX_DIGITS = 100  # longer numbers are a mistake, and slow to convert

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}


def resolve(text: str) -> Scalar:
    """The value that the plain scalar ``text`` stands for; ``ValueError`` for a number of more than 100 characters."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(_short(text), _BASES.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(_short(text))
    if found := _INFINITY.fullmatch(text):
        return float(found[1] + "inf")
    return float("nan") if _NAN.fullmatch(text) else text


def _short(text: str) -> str:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    return text

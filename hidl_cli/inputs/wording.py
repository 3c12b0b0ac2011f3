"""pydantic's errors in a person's words: what is wrong, and what was expected there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hidl_cli.inputs import scalars
from hidl_cli.inputs.faults import Fault, dotted, nearest, one_of
from hidl_cli.inputs.fields import PATTERNS
from hidl_cli.inputs.problems import clipped
from hidl_cli.inputs.shape import Spot, choices, locate, phrase
from hidl_cli.inputs.tree import describe

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Context = Mapping[str, Any]

_YAML_1_1_BOOLEANS = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}


def fault_of(model: type[BaseModel], detail: ErrorDetails) -> Fault:
    """The fault that one of pydantic's errors about ``model`` stands for."""
    spot = locate(model, detail["loc"])
    return _WORDING.get(detail["type"], _wrong_type)(spot, detail["input"], detail.get("ctx", {}))


def _missing(spot: Spot, _value: Any, _context: Context) -> Fault:
    inside = f" in {dotted(spot.path[:-1])}" if spot.path[:-1] else ""
    return Fault(spot.path, f"missing key `{spot.path[-1]}`{inside}", _expected(spot))


def _unknown_key(spot: Spot, _value: Any, _context: Context) -> Fault:
    suggestion = nearest(spot.path[-1], spot.siblings)
    return Fault(spot.path, f"unknown key `{dotted(spot.path)}`", one_of(spot.siblings), suggestion, on_key=True)


def _wrong_choice(spot: Spot, value: Any, context: Context) -> Fault:
    words = choices(spot.annotation)
    if not isinstance(value, str):
        return _wrong_type(spot, value, context)
    return Fault(spot.path, f"invalid `{dotted(spot.path)}`: `{clipped(value)}`", one_of(words), nearest(value, words))


def _wrong_form(spot: Spot, value: Any, context: Context) -> Fault:
    pattern = str(context["pattern"])
    expected = PATTERNS.get(pattern, f"text that matches {pattern}")
    return Fault(spot.path, f"invalid value `{clipped(value)}`", expected, on_key=spot.on_key)


def _too_long(spot: Spot, value: Any, context: Context) -> Fault:
    return Fault(
        spot.path, f"`{clipped(value)}` is too long", f"at most {context['max_length']} characters", on_key=spot.on_key
    )


def _empty(spot: Spot, _value: Any, _context: Context) -> Fault:
    return Fault(spot.path, f"`{dotted(spot.path)}` is empty", "at least one entry")


def _out_of_range(bound: str, words: str) -> Callable[[Spot, Any, Context], Fault]:
    def wording(spot: Spot, value: Any, context: Context) -> Fault:
        return Fault(spot.path, f"`{dotted(spot.path)}` is {clipped(str(value))}", f"{words} {context[bound]:g}")

    return wording


def _not_finite(spot: Spot, value: Any, _context: Context) -> Fault:
    return Fault(spot.path, f"`{dotted(spot.path)}` is {value}", "a finite number")


def _wrong_type(spot: Spot, value: Any, _context: Context) -> Fault:
    return Fault(
        spot.path,
        f"`{dotted(spot.path)}` is {describe(value)}",
        _expected(spot),
        _as_meant(value, phrase(spot.annotation)),
    )


_WORDING: dict[str, Callable[[Spot, Any, Context], Fault]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "literal_error": _wrong_choice,
    "string_pattern_mismatch": _wrong_form,
    "string_too_long": _too_long,
    "too_short": _empty,
    "greater_than_equal": _out_of_range("ge", "at least"),
    "greater_than": _out_of_range("gt", "more than"),
    "less_than_equal": _out_of_range("le", "at most"),
    "less_than": _out_of_range("lt", "less than"),
    "finite_number": _not_finite,
}


def _expected(spot: Spot) -> str:
    words = phrase(spot.annotation)
    return f"{words} ({spot.description})" if spot.description else words


def _as_meant(value: Any, expected: str) -> str | None:
    """The value as it was probably meant: a number without its quotes, ``true`` for ``yes``, ``4`` for ``4.0``."""
    if isinstance(value, float) and expected == "a whole number" and value.is_integer():
        return str(int(value))
    if not isinstance(value, str):
        return None
    if expected == "true or false" and value.lower() in _YAML_1_1_BOOLEANS:
        return _YAML_1_1_BOOLEANS[value.lower()]
    try:
        meant = scalars.resolve(value)
    except ValueError:
        return None
    fits = expected == describe(meant) or (expected == "a number" and type(meant) is int)
    return value if fits and not isinstance(meant, str) else None

"""Validate a document against its model, and report all errors at once with their positions."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticKnownError, core_schema

from hidl_cli.errors import Problem
from hidl_cli.inputs import problems as scalars
from hidl_cli.inputs.problems import Check, Fault, clipped, dotted, nearest, one_of
from hidl_cli.inputs.source import YamlNode, describe, place, plain

if TYPE_CHECKING:
    from hidl_cli.plugins import Registry


Context = Mapping[str, Any]

_YAML_1_1_BOOLEANS = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}


def fault_of(model: type[BaseModel], detail: ErrorDetails) -> Fault:
    """Translate one of pydantic's errors about ``model``."""
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


def _pattern_mismatch(spot: Spot, value: Any, context: Context) -> Fault:
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
        _corrected(value, phrase(spot.annotation)),
    )


_WORDING: dict[str, Callable[[Spot, Any, Context], Fault]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "literal_error": _wrong_choice,
    "string_pattern_mismatch": _pattern_mismatch,
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


def _corrected(value: Any, expected: str) -> str | None:
    """Return the value that was probably intended: an unquoted number, ``true`` for ``yes``, or ``4`` for ``4.0``."""
    if isinstance(value, float) and expected == "a whole number" and value.is_integer():
        return str(int(value))
    if not isinstance(value, str):
        return None
    if expected == "true or false" and value.lower() in _YAML_1_1_BOOLEANS:
        return _YAML_1_1_BOOLEANS[value.lower()]
    try:
        intended = scalars.resolve(value)
    except ValueError:
        return None
    fits = expected == describe(intended) or (expected == "a number" and type(intended) is int)
    return value if fits and not isinstance(intended, str) else None


# Schema building blocks: the strict base model and common text types.


_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_IDENTIFIER = r"^[a-z][a-z0-9_]*$"
_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_SCHEDULER_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.:/+@=,&|*()\[\]-]*$"
_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
_SHA256 = r"^[0-9a-f]{64}$"
PATTERN_OF_TIMES = r"^([0-9]{1,4}-[0-9]{1,3}|[0-9]{1,7})(:[0-5]?[0-9]){0,2}$"

MAX_REGEX = 1000  # longer regular expressions are mistakes, and slow to compile

#: Pattern descriptions.
PATTERNS = {
    _NAME: "lower-case letters, digits, and . _ - after the first character",
    _IDENTIFIER: "lower-case letters, digits and _, starting with a letter",
    _MODULE: "a Python module name, such as package.module",
    _VARIABLE: "an environment variable name: letters, digits and _, not starting with a digit",
    _SCHEDULER_WORD: "one word without spaces or quotes, starting with a letter, a digit or _",
    _FILE_NAME: "a file name without a directory: letters, digits and . _ + -",
    _SHA256: "64 lower-case hexadecimal digits",
    PATTERN_OF_TIMES: "a time in one of Slurm's formats: minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
    "days-hours:minutes or days-hours:minutes:seconds, such as 90, 48:00:00 or 2-00",
}

Name = Annotated[str, Field(pattern=_NAME, max_length=64, description=PATTERNS[_NAME])]
Identifier = Annotated[str, Field(pattern=_IDENTIFIER, max_length=64, description=PATTERNS[_IDENTIFIER])]
Module = Annotated[str, Field(pattern=_MODULE, description=PATTERNS[_MODULE])]
EnvironmentVariable = Annotated[str, Field(pattern=_VARIABLE, max_length=128, description=PATTERNS[_VARIABLE])]
SchedulerWord = Annotated[str, Field(pattern=_SCHEDULER_WORD, max_length=128, description=PATTERNS[_SCHEDULER_WORD])]
FileName = Annotated[str, Field(pattern=_FILE_NAME, max_length=255, description=PATTERNS[_FILE_NAME])]
Sha256 = Annotated[str, Field(pattern=_SHA256, description=PATTERNS[_SHA256])]
WallTime = Annotated[str, Field(pattern=PATTERN_OF_TIMES, description=PATTERNS[PATTERN_OF_TIMES])]
Scalar = bool | int | float | str
Regex = Annotated[str, Field(max_length=MAX_REGEX)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class NameIn:
    """Annotation for a name in a registry. Plug-ins are only searched if the name is not built in."""

    registry: Registry[Any]
    also: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return all valid names."""
        return (*self.registry.names(), *self.also)

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}

    def _validate(self, value: object) -> str:
        if not isinstance(value, str) or (value not in self.registry and value not in self.also):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(self.names())})
        return value


class Strict(BaseModel):
    """Base model for YAML input: immutable, without unknown keys, and without type coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


# Lookup of the value that a model expects at a position in a document.


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}


@dataclass(frozen=True)
class Spot:
    """A position in a document, as the document's model describes it.

    Attributes:
        annotation: Type expected at this position, or None if the key is unknown.
        description: The field's description.
        siblings: Valid keys at this level.
        on_key: True if the spot is the key rather than its value.
    """

    path: tuple[str | int, ...]
    annotation: Any
    description: str | None = None
    siblings: tuple[str, ...] = ()
    on_key: bool = False


def locate(model: type[BaseModel], location: Sequence[str | int]) -> Spot:
    """Return the position in the document to which the location of a pydantic error refers.

    pydantic adds steps to a location that do not exist in the document: ``[key]`` for the key of a mapping, and the
    names of a union's branches.
    """
    spot = Spot((), model)
    below_dict = False
    for step in location:
        if step == "[key]" and below_dict:
            return Spot(spot.path, spot.annotation, on_key=True)
        inner = _bare(spot.annotation)
        path = (*spot.path, step)
        below_dict = get_origin(inner) is dict
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(str(step))
            siblings = tuple(inner.model_fields)
            if field is None:
                return Spot(path, None, siblings=siblings, on_key=True)
            names = next((each for each in field.metadata if isinstance(each, NameIn)), None)
            annotation = Annotated[field.annotation, names] if names else field.annotation
            spot = Spot(path, annotation, field.description, siblings)
        elif below_dict or get_origin(inner) is list:
            spot = Spot(path, get_args(inner)[-1])
        else:
            return spot
    return spot


def phrase(annotation: Any) -> str:
    """Describe the values that an annotation accepts."""
    bare = _bare(annotation)
    if words := choices(annotation):
        return f"one of: {', '.join(words)}"
    if get_origin(bare) in (Union, types.UnionType):
        *others, last = dict.fromkeys(phrase(branch) for branch in get_args(bare) if branch is not int)
        return f"{', '.join(others)} or {last}" if others else last
    return _WORDS.get(get_origin(bare) or bare, "a mapping of `key: value` lines")


def choices(annotation: Any) -> tuple[str, ...]:
    """Return a ``Literal``'s values or a registry's names, or an empty result for any other annotation."""
    if names := _names(annotation):
        return names.names()
    bare = _bare(annotation)
    return tuple(map(str, get_args(bare))) if get_origin(bare) is Literal else ()


def _names(annotation: Any) -> NameIn | None:
    """Return the ``NameIn`` of an annotation, which may be optional, or None if there is none."""
    if get_origin(annotation) is Annotated:
        _, *metadata = get_args(annotation)
        return next((each for each in metadata if isinstance(each, NameIn)), None)
    if get_origin(annotation) in (Union, types.UnionType):
        branches = [branch for branch in get_args(annotation) if branch is not type(None)]
        return _names(branches[0]) if len(branches) == 1 else None
    return None


def _bare(annotation: Any) -> Any:
    """Remove ``Annotated`` and an optional None from an annotation."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        branches = [branch for branch in get_args(annotation) if branch is not type(None)]
        return _bare(branches[0]) if len(branches) == 1 else annotation
    return annotation


M = TypeVar("M", bound=BaseModel)

MAX_FINDINGS = 100
_BRANCHES = 4


def check(
    root: YamlNode, model: type[M], checks: Iterable[Check], *, complete: bool = True
) -> tuple[M | None, tuple[Problem, ...]]:
    """Validate a document and return its model (None if it is invalid) and all problems.

    If ``complete`` is False, part of the document could not be read, so missing keys are not reported. If there are
    more than ``MAX_FINDINGS`` problems, one last problem reports this.
    """
    data = plain(root)
    checked = None
    details: list[ErrorDetails] = []
    try:
        checked = model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults = chain(
        (fault_of(model, detail) for detail in details if complete or detail["type"] != "missing"),
        (fault for rule in checks for fault in rule(data)),
    )
    # A fault inside a union occurs once per branch. Without a limit, describing hundreds of thousands of faults would
    # take a long time.
    unique = list(dict.fromkeys(islice(faults, _BRANCHES * (MAX_FINDINGS + 1))))
    problems = [_locate_fault(root, fault) for fault in unique[:MAX_FINDINGS]]
    if len(unique) > MAX_FINDINGS:
        problems.append(
            Problem(f"more than {MAX_FINDINGS} errors; the rest are not shown", "a file that matches its schema")
        )
    return (None if problems else checked), tuple(problems)


def _locate_fault(root: YamlNode, fault: Fault) -> Problem:
    mark = place(root, fault.path, on_key=fault.on_key)
    return Problem(fault.message, fault.expected, fault.path, mark, fault.suggestion)

"""Problems in input files: collecting, describing and rendering them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hidl_cli.errors import Mark, Problem
from hidl_cli.redaction import HIDDEN, shown

_TAB = "    "
_BEFORE, _SPAN, _AFTER = 60, 60, 40  # number of characters shown before, within and after the marked part of a line
_MAX_LENGTH = 400  # maximum length of a message


def render(problem: Problem) -> str:
    """Render a problem as plain text: its position, the line with a caret, and the expected value.

    Control, format and surrogate characters are shown as escapes, so that a file cannot manipulate the terminal.
    """
    lines = [f"error: {_shown(problem.message)}"]
    gutter = ""
    suggestion = f"did you mean `{_shown(problem.suggestion)}`?" if problem.suggestion else ""
    if problem.mark is not None:
        mark = _without_secrets(problem.mark)
        gutter = " " * len(str(mark.line))
        place = f":{mark.line}:{mark.column}" if mark.line else ""
        lines.append(f"{gutter}--> {_shown(str(mark.file))}{place}")
        if mark.line:
            quoted, caret = _excerpt(mark)
            lines += [f"{gutter} |", f"{mark.line} | {quoted}", f"{gutter} | {caret} {suggestion}".rstrip()]
            suggestion = ""
    lines.append(f"{gutter} = expected: {_shown(problem.expected)}")
    if suggestion:
        lines.append(f"{gutter} = {suggestion}")
    return "\n".join(lines)


def as_document(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON data. Line, column and length are null if the problem concerns the whole file."""
    mark = problem.mark
    place = (mark.line, mark.column, mark.length) if mark and mark.line else (None, None, None)
    return {
        "message": problem.message,
        "expected": problem.expected,
        "suggestion": problem.suggestion,
        "path": list(problem.path),
        "file": str(mark.file) if mark else None,
    } | dict(zip(("line", "column", "length"), place, strict=True))


def visible(text: str) -> str:
    """Escape all characters that a terminal would interpret, hide or reorder.

    Unusual spaces are also escaped, because a no-break space, for example, looks like indentation but is not.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, length: int = 60) -> str:
    """Redact secrets and shorten the text to ``length`` characters, ending in an ellipsis."""
    text = shown(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def _without_secrets(mark: Mark) -> Mark:
    """Redact secrets in the marked line. If a redacted word precedes the mark, the mark is moved to this word."""
    text = shown(mark.text)
    if text == mark.text:
        return mark
    same = next((at for at, (new, old) in enumerate(zip(text, mark.text, strict=False)) if new != old), 0)
    return replace(mark, text=text, column=min(mark.column, same + 1), length=min(mark.length, len(HIDDEN)))


def _excerpt(mark: Mark) -> tuple[str, str]:
    """Return the part of the line around the mark, and the carets below it."""
    from rich.cells import cell_len  # counts two cells for wide characters and none for combining ones

    start = mark.column - 1
    end = start + mark.length
    before = _for_display(mark.text[max(0, start - _BEFORE - 1) : start])
    if len(before) > _BEFORE:
        before = "…" + before[1 - _BEFORE :]
    span = clipped(_for_display(mark.text[start : min(end, start + _SPAN + 1)]), _SPAN)
    after = clipped(_for_display(mark.text[end : end + _AFTER + 1]), _AFTER)
    return before + span + after, " " * cell_len(before) + "^" * max(1, cell_len(span))


def _for_display(text: str) -> str:
    return visible(text.replace("\t", _TAB))


def _shown(text: str) -> str:
    return clipped(visible(text), _MAX_LENGTH)


# Faults, which are problems identified by a path in the document.


@dataclass(frozen=True)
class Fault:
    """A problem without a position in the file. It concerns the value at ``path``, or its key if ``on_key`` is set."""

    path: tuple[str | int, ...]
    message: str
    expected: str
    suggestion: str | None = None
    on_key: bool = False


#: A check that involves several fields. It receives the plain data, which may be invalid, and yields a ``Fault`` for
#: each problem.
Check = Callable[[Mapping[str, Any]], Iterable[Fault]]


def nearest(word: object, words: Iterable[str]) -> str | None:
    """Return the word that ``word`` most likely misspells, if any."""
    by_folded = {candidate.casefold(): candidate for candidate in words}
    near = difflib.get_close_matches(clipped(str(word)).casefold(), by_folded, n=1)
    return by_folded[near[0]] if near else None


def one_of(words: Iterable[str]) -> str:
    """Format the words for an "expected ..." phrase."""
    return f"one of: {', '.join(words) or '(none)'}"


def dotted(path: Iterable[str | int]) -> str:
    """Format a path for messages, as in ``stacks[0].when``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{clipped(step)}" for step in path)
    return "".join(steps).removeprefix(".")


def mapping(data: Any, key: str) -> Mapping[str, Any]:
    """Return ``data[key]`` if it is a mapping, or else an empty mapping, because checks also receive malformed data."""
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


# Plain scalars in YAML 1.2's core schema (section 10.3.2).


Scalar = str | int | float | bool | None

MAX_DIGITS = 100  # longer numbers are mistakes, and slow to convert

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}


def resolve(text: str) -> Scalar:
    """Return the value of a plain scalar.

    Raises ``ValueError`` for a number with more than ``MAX_DIGITS`` characters.
    """
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

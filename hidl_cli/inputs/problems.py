"""A problem: one fault in a file that a person wrote, with its place, and how it is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hidl_cli.errors import Mark, Problem
from hidl_cli.redaction import HIDDEN, shown

_TAB = "    "
_BEFORE, _SPAN, _AFTER = 60, 60, 40  # characters of a line that are shown before, under and after the carets
_WORDS = 400  # characters of a message that are shown


def render(problem: Problem) -> str:
    """The problem as plain text of several lines, for a terminal: place, the line with a caret, what was expected.

    Nothing of the quoted file reaches the terminal raw: control, format and surrogate characters are shown as escapes.
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
    """The problem as plain data, for JSON; its line, column and length are null where the file as a whole is meant."""
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
    """The text with every character that a terminal would obey, hide or reorder replaced by its escape.

    Unusual spaces count as hidden: a no-break space looks like indentation, and is none.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, length: int = 60) -> str:
    """The text without secrets, or its beginning and an ellipsis where it is longer than ``length`` characters."""
    text = shown(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def _without_secrets(mark: Mark) -> Mark:
    """Return the mark with the line as it may be shown; it begins no later than the first hidden word."""
    text = shown(mark.text)
    if text == mark.text:
        return mark
    same = next((at for at, (new, old) in enumerate(zip(text, mark.text, strict=False)) if new != old), 0)
    return replace(mark, text=text, column=min(mark.column, same + 1), length=min(mark.length, len(HIDDEN)))


def _excerpt(mark: Mark) -> tuple[str, str]:
    """The marked line, clipped to a window around the span, and the carets that stand under the span."""
    from rich.cells import cell_len  # wide characters take two cells, combining ones none

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
    return clipped(visible(text), _WORDS)

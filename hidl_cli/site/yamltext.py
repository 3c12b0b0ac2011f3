"""YAML that people read: mappings in order, each key with a comment that says why its value is what it is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hidl_cli.inputs import scalars
from hidl_cli.quoting import comment

Scalar = str | int | float | bool | None

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_WORDS_OF_YAML_1_1 = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_WIDTH = 118
_LONGEST_COMMENT = 400


@dataclass(frozen=True)
class Item:
    """A key with its value, which is a scalar, a list of scalars, or the items of a mapping; ``why``: its comment."""

    key: str
    value: Scalar | Sequence[Scalar] | Sequence[Item]
    why: str = ""


def document(items: Sequence[Item], *, head: Sequence[str] = ()) -> str:
    """The text of a file; ``head``: the comments at its top, a paragraph each."""
    return "".join(f"{line}\n" for line in (*_comments(head, 0), *_lines(items, 0)))


def scalar(value: Scalar) -> str:
    """One value on one line: plain where every version of YAML reads it as it is, else quoted.

    Characters that YAML does not hold outside of an escape sequence become spaces.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) and value == round(value, 3) and value < 1e5 else str(value)
    text = comment(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML_1_1 and scalars.resolve(text) == text
    return text if plain else "'" + text.replace("'", "''") + "'"


def _lines(items: Sequence[Item], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for item in items:
        yield from _comments([item.why] if item.why else [], depth)
        key = f"{indent}{scalar(item.key)}:"
        value = item.value
        if not isinstance(value, (list, tuple)):
            yield f"{key} {scalar(value)}"  # type: ignore[arg-type] # a str is a Sequence too
        elif not value:
            yield f"{key} {{}}" if isinstance(value, tuple) else f"{key} []"
        elif isinstance(value[0], Item):
            yield key
            yield from _lines(value, depth + 1)
        else:
            flow = f"{key} [{', '.join(scalar(one) for one in value)}]"
            if len(flow) <= _WIDTH:
                yield flow
            else:
                yield key
                yield from (f"{indent}  - {scalar(one)}" for one in value)


def _comments(paragraphs: Sequence[str], depth: int) -> Iterator[str]:
    indent = "  " * depth + "# "
    for paragraph in paragraphs:
        text = " ".join(comment(paragraph).split())
        if len(text) > _LONGEST_COMMENT:
            text = text[: _LONGEST_COMMENT - 4] + " ..."
        yield from textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)

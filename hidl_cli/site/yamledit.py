"""Write and edit YAML files without changing the keys, comments and order that users wrote."""

from __future__ import annotations

import copy
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli.inputs import problems, source, yamlfile
from hidl_cli.inputs.source import SourceText, YamlNode
from hidl_cli.quoting import comment

Scalar = str | int | float | bool | None

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_WORDS_OF_YAML_1_1 = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_WIDTH = 118
_LONGEST_COMMENT = 400


@dataclass(frozen=True)
class YamlItem:
    """A key and its value, which is a scalar, a list of scalars, or the items of a mapping; ``why`` is a comment."""

    key: str
    value: Scalar | Sequence[Scalar] | Sequence[YamlItem]
    why: str = ""


def document(items: Sequence[YamlItem], *, head: Sequence[str] = ()) -> str:
    """Return a file's text. ``head`` contains the paragraphs of the comment at the top."""
    return "".join(f"{line}\n" for line in (*_comments(head, 0), *_lines(items, 0)))


def scalar(value: Scalar) -> str:
    """Format a value on one line, quoted unless all versions of YAML read it unchanged without quotes.

    Characters that YAML only allows in escape sequences are replaced with spaces.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) and value == round(value, 3) and value < 1e5 else str(value)
    text = comment(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML_1_1 and problems.resolve(text) == text
    return text if plain else "'" + text.replace("'", "''") + "'"


def _lines(items: Sequence[YamlItem], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for item in items:
        yield from _comments([item.why] if item.why else [], depth)
        key = f"{indent}{scalar(item.key)}:"
        value = item.value
        if not isinstance(value, (list, tuple)):
            yield f"{key} {scalar(value)}"  # type: ignore[arg-type] # a str is a Sequence too
        elif not value:
            yield f"{key} {{}}" if isinstance(value, tuple) else f"{key} []"
        elif isinstance(value[0], YamlItem):
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


#: Beginning of a comment that hidl wrote for a value and replaces together with the value.
ORIGIN = "asked of "
#: Beginning of a comment that hidl wrote for a value measured by a run.
MEASURED = "measured by run "
_COMMENT = re.compile(rf"[ ]*# (?:{ORIGIN}|{MEASURED}).*\n$")


@dataclass(frozen=True)
class Value:
    """A value for the key at ``path``, and its comment (``why``). It replaces only null or the old value ``was``."""

    path: tuple[str, ...]
    value: str
    why: str
    was: Any = None


def edited(text: str, values: Sequence[Value]) -> str | None:
    """Return the text with these values, or None if they cannot be set without changing anything else.

    A value is set if its key is missing or has the value null or ``was``. Flow mappings (``{...}``), aliases and line
    endings other than LF are not supported. The result is parsed to verify that nothing else has changed.
    """
    if "\r" in text:
        return None
    expected = _plain(text)
    if expected is None:
        return None
    expected = copy.deepcopy(expected)
    for value in values:
        made = _with(text, value)
        if made is None or not _put(expected, value.path, value.value):
            return None
        text = made
    return text if _plain(text) == expected else None


def values_at(text: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the scalars of the mapping at ``path`` (empty if it is missing)."""
    node = _root(text)
    for key in path:
        node = node.content[key].value if node and isinstance(node.content, dict) and key in node.content else None
    found = source.plain(node) if node and isinstance(node.content, dict) else {}
    return {key: value for key, value in found.items() if not isinstance(value, dict | list)}


def items(values: Sequence[Value]) -> tuple[YamlItem, ...]:
    """Convert values to nested mappings, keeping their comments."""
    return tuple(_items(values, 0))


def _items(values: Sequence[Value], depth: int) -> list[YamlItem]:
    made: list[YamlItem] = []
    for key in dict.fromkeys(value.path[depth] for value in values):
        below = [value for value in values if value.path[depth] == key]
        if len(below[0].path) == depth + 1:
            made.append(YamlItem(key, below[0].value, below[0].why))
        else:
            made.append(YamlItem(key, tuple(_items(below, depth + 1))))
    return made


def _with(text: str, value: Value) -> str | None:
    node = _root(text)
    for depth, key in enumerate(value.path):
        if node is None or not isinstance(node.content, dict) or not node.content or text[node.span.start] == "{":
            return None
        member = node.content.get(key)
        if member is None:
            below = Value(value.path[depth:], value.value, value.why)
            return _appended(text, node, document(items([below])))
        if depth + 1 == len(value.path) and (member.value.content is None or member.value.content == value.was):
            return _replaced(text, member.key.start, member.value, value)
        node = member.value
    return None


def _appended(text: str, mapping: YamlNode, lines: str) -> str | None:
    """Append lines to a block mapping, indented like the mapping's keys. Returns None if that is not possible."""
    assert isinstance(mapping.content, dict)
    last = list(mapping.content.values())[-1]
    indent = _indent(text, last.key.start)
    if indent is None:
        return None
    end = _end(last.value)
    if text[end - 1] != "\n":  # a block scalar already ends with a line break
        following = text.find("\n", end)
        end = len(text) if following < 0 else following + 1
    begin = text[:end] if text[end - 1] == "\n" else text[:end] + "\n"
    return begin + textwrap.indent(lines, indent) + text[end:]


def _replaced(text: str, key: int, old: YamlNode, value: Value) -> str | None:
    """Replace a scalar and write its comment on the line above, replacing an older comment written by hidl."""
    indent = _indent(text, key)
    if indent is None or old.span.start < key:
        return None
    start = text.rfind("\n", 0, key) + 1
    made = text[: old.span.start] + (" " if old.span.start == old.span.end else "") + scalar(value.value)
    lines = document([YamlItem(value.path[-1], value.value, value.why)]).splitlines(keepends=True)
    comments = "".join(f"{indent}{line}" for line in lines[:-1])
    before = made[:start]
    if value.was is not None:
        before = _COMMENT.sub("", before)
    return before + comments + made[start:] + text[old.span.end :]


def _indent(text: str, key: int) -> str | None:
    """Return the indentation of a key, or None if something else precedes it on the line."""
    begin = text[text.rfind("\n", 0, key) + 1 : key]
    return None if begin.strip(" ") else begin


def _end(node: YamlNode) -> int:
    """Return the end of the last scalar below a node."""
    match node.content:
        case dict() as members if members:
            return max(node.span.start, *(_end(member.value) for member in members.values()))
        case list() as parts if parts:
            return max(node.span.start, *(_end(part) for part in parts))
    return node.span.end


def _root(text: str) -> YamlNode | None:
    found = yamlfile.parse(SourceText(Path("site.yaml"), text))
    return None if found.problems else found.root


def _plain(text: str) -> Any:
    root = _root(text)
    return None if root is None else source.plain(root)


def _put(data: Any, path: tuple[str, ...], value: str) -> bool:
    for step in path[:-1]:
        data = data.setdefault(step, {}) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        return False
    data[path[-1]] = value
    return True

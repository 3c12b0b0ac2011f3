"""A document as a tree whose every key and value knows its place, across all files that it was merged from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hidl_cli.errors import Mark
from hidl_cli.inputs.source import Source

Path = tuple[str | int, ...]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file, from offset ``start`` up to ``end``."""

    source: Source
    start: int
    end: int

    def mark(self) -> Mark:
        """The place for people: line and column."""
        return self.source.mark(self.start, self.end)


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and where it is written; an alias shares the node of its anchor."""

    span: Span
    content: Scalar | Sequence[YamlNode] | dict[str, Member]


@dataclass(frozen=True, slots=True)
class Member:
    """A mapping's entry: where its key is written, and its value."""

    key: Span
    value: YamlNode


def plain(node: YamlNode) -> Any:
    """The node as nested dicts, lists and scalars."""
    match node.content:
        case dict() as members:
            return {key: plain(member.value) for key, member in members.items()}
        case list() as items:
            return [plain(item) for item in items]
        case scalar:
            return scalar


def place(root: YamlNode, path: Path, *, on_key: bool = False) -> Mark:
    """Where ``path`` is written: its value, or with ``on_key`` its key; the nearest thing around it if it is not there.

    A mapping or list stands for many lines, so its key is shown in its stead.
    """
    node, key = root, _first_key(root)
    for step in path:
        below = _step(node, step)
        if below is None:
            return key.mark()
        node, key = below[0], below[1]
    return key.mark() if on_key or isinstance(node.content, dict | list) else node.span.mark()


def merge(base: YamlNode, own: YamlNode, *, appended: Collection[Path] = (), _path: Path = ()) -> YamlNode:
    """``own`` laid over ``base``: mappings merge key by key, all else is replaced; lists at ``appended`` paths grow."""
    if isinstance(base.content, dict) and isinstance(own.content, dict):
        members = dict(base.content)
        for key, member in own.content.items():
            below = base.content.get(key)
            value = merge(below.value, member.value, appended=appended, _path=(*_path, key)) if below else member.value
            members[key] = Member(member.key, value)
        return replace(own, content=members)
    if _path in appended and isinstance(base.content, list) and isinstance(own.content, list):
        inherited = [plain(item) for item in base.content]
        return replace(own, content=base.content + [item for item in own.content if plain(item) not in inherited])
    return own


def without(root: YamlNode, keys: Collection[str]) -> YamlNode:
    """The mapping without some of its keys."""
    assert isinstance(root.content, dict)
    return replace(root, content={key: member for key, member in root.content.items() if key not in keys})


def describe(value: Any) -> str:
    """What kind of value this is, in a person's words; takes what ``plain`` gives, and a node's content."""
    words = {type(None): "empty (null)", bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(type(value)) or ("a mapping" if isinstance(value, dict) else "a list")


def _step(node: YamlNode, step: str | int) -> tuple[YamlNode, Span] | None:
    """The node one step below and the span of its key (a list item's is its own), or None."""
    if isinstance(node.content, dict) and isinstance(step, str) and step in node.content:
        member = node.content[step]
        return member.value, member.key
    if isinstance(node.content, list) and isinstance(step, int) and step < len(node.content):
        return node.content[step], node.content[step].span
    return None


def _first_key(root: YamlNode) -> Span:
    if isinstance(root.content, dict) and root.content:
        return next(iter(root.content.values())).key
    return root.span

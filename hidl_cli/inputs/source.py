"""A text file that a person wrote, read safely: what cannot be used is refused with a problem, quickly."""

from __future__ import annotations

import codecs
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from hidl_cli.errors import InvalidInput, Mark, Problem

Keys = tuple[str | int, ...]
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


def place(root: YamlNode, path: Keys, *, on_key: bool = False) -> Mark:
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


def merge(base: YamlNode, own: YamlNode, *, appended: Collection[Keys] = (), _path: Keys = ()) -> YamlNode:
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


MAX_BYTES = 1 << 20

#: What YAML 1.2 does not count as printable, and so never holds outside of an escape sequence.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_WIDE_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class Source:
    """A file's text. Offsets count characters from 0; a leading byte order mark is not part of the text."""

    file: FilePath
    text: str

    def mark(self, start: int, end: int) -> Mark:
        """The place from offset ``start`` up to ``end``, cut off at the end of its first line.

        Lines are counted as editors count them, by LF, CRLF and CR. (YAML parsers also break at U+0085, U+2028 and
        U+2029, so their line numbers would not be the editor's.)
        """
        index = bisect_right(self._line_starts, start) - 1
        line = self._lines[index]
        column = start - self._line_starts[index]
        length = max(1, min(end, self._line_starts[index] + len(line)) - start)
        return Mark(self.file, index + 1, column + 1, length, line)

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_BREAK.finditer(self.text))]


def read_source(path: FilePath) -> Source:
    """The text of a regular UTF-8 file of at most 1 MiB; raises ``InvalidInput`` with one problem for any other."""
    return Source(path, _decoded(path, _read_bytes(path)))


def _read_bytes(path: FilePath) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for a FIFO's writer
        try:
            _refuse_by_status(path, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _refusal(path, f"cannot read the file: {reason}", "a readable YAML file") from error
    if len(content) > MAX_BYTES:
        raise _refusal(path, f"the file exceeds {MAX_BYTES:,} bytes", f"at most {MAX_BYTES:,} bytes")
    return content


def _refuse_by_status(path: FilePath, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise _refusal(path, f"not a file: {kind}", "a regular YAML file")
    if status.st_size > MAX_BYTES:
        raise _refusal(path, f"the file is too large: {status.st_size:,} bytes", f"at most {MAX_BYTES:,} bytes")


def _decoded(path: FilePath, content: bytes) -> str:
    for mark, encoding in _WIDE_ENCODINGS:
        if content.startswith(mark):
            raise _refusal(path, f"the file is encoded in {encoding}", "UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        # the text up to the fault is valid, so its end is the fault's place
        before = Source(path, content[: error.start].decode("utf-8") + "\N{REPLACEMENT CHARACTER}")
        byte = content[error.start]
        raise InvalidInput(
            f"{path} is not UTF-8",
            problems=[
                Problem(
                    f"the file is not UTF-8: byte 0x{byte:02x} at offset {error.start}",
                    "UTF-8 (save the file in that encoding)",
                    mark=before.mark(len(before.text) - 1, len(before.text)),
                )
            ],
        ) from error
    if found := UNPRINTABLE.search(text):
        raise InvalidInput(
            f"{path} contains a control character",
            problems=[
                Problem(
                    f"control character U+{ord(found[0]):04X}",
                    "printable text",
                    mark=Source(path, text).mark(found.start(), found.end()),
                )
            ],
        )
    return text


def _refusal(path: FilePath, message: str, expected: str) -> InvalidInput:
    """The error for a file that is faulty as a whole."""
    return InvalidInput(f"{path}: {message}", problems=[Problem(message, expected, mark=Mark(path))])

"""Read text files safely and represent YAML values with their positions."""

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
    """A range of characters in a file, from offset ``start`` up to ``end``."""

    source: SourceText
    start: int
    end: int

    def mark(self) -> Mark:
        """Return the line and column for messages."""
        return self.source.mark(self.start, self.end)


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and its position. An alias shares its anchor's node."""

    span: Span
    content: Scalar | Sequence[YamlNode] | dict[str, Member]


@dataclass(frozen=True, slots=True)
class Member:
    """A mapping entry: the position of its key, and its value."""

    key: Span
    value: YamlNode


def plain(node: YamlNode) -> Any:
    """Convert a node to nested dicts, lists and scalars."""
    match node.content:
        case dict() as members:
            return {key: plain(member.value) for key, member in members.items()}
        case list() as items:
            return [plain(item) for item in items]
        case scalar:
            return scalar


def place(root: YamlNode, path: Keys, *, on_key: bool = False) -> Mark:
    """Return the position of the value at ``path``, or of its key if ``on_key`` is set.

    Mappings and lists span many lines, so they are marked at their key. If the path does not exist, the position of its
    closest existing ancestor is returned.
    """
    node, key = root, _first_key(root)
    for step in path:
        below = _step(node, step)
        if below is None:
            return key.mark()
        node, key = below[0], below[1]
    return key.mark() if on_key or isinstance(node.content, dict | list) else node.span.mark()


def merge(base: YamlNode, own: YamlNode, *, appended: Collection[Keys] = (), _path: Keys = ()) -> YamlNode:
    """Merge ``own`` into ``base``.

    Mappings are merged by key, and lists at ``appended`` paths are appended to. Everything else is replaced.
    """
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
    """Remove keys from a mapping."""
    assert isinstance(root.content, dict)
    return replace(root, content={key: member for key, member in root.content.items() if key not in keys})


def describe(value: Any) -> str:
    """Describe the type of a plain value or of a node's content."""
    words = {type(None): "empty (null)", bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(type(value)) or ("a mapping" if isinstance(value, dict) else "a list")


def _step(node: YamlNode, step: str | int) -> tuple[YamlNode, Span] | None:
    """Return a child and its key's span (or its own span, for a list item), or None if there is no such child."""
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

#: Characters that YAML 1.2 considers unprintable, and only allows in escape sequences.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_WIDE_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class SourceText:
    """A file's text. Offsets count characters, excluding a leading byte order mark."""

    file: FilePath
    text: str

    def mark(self, start: int, end: int) -> Mark:
        """Return the position of the characters from ``start`` up to ``end``, cut off at the end of the first line.

        Lines end with LF, CRLF or CR, as in editors. YAML parsers also count U+0085, U+2028 and U+2029, so their line
        numbers can differ.
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


def read_source(path: FilePath) -> SourceText:
    """Read a regular UTF-8 file of at most 1 MiB. Raises ``InvalidInput`` for any other file."""
    return SourceText(path, _decoded(path, _read_bytes(path)))


def _read_bytes(path: FilePath) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO must not block
        try:
            _refuse_by_status(path, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
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
        # The text before the invalid byte is valid, so the error is at the end of that text.
        before = SourceText(path, content[: error.start].decode("utf-8") + "\N{REPLACEMENT CHARACTER}")
        byte = content[error.start]
        raise InvalidInput(
            f"{path} is not UTF-8",
            problems=[
                Problem(
                    f"the file is not UTF-8: byte 0x{byte:02x} at offset {error.start}",
                    "UTF-8 (save the file in this encoding)",
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
                    mark=SourceText(path, text).mark(found.start(), found.end()),
                )
            ],
        )
    return text


def _refusal(path: FilePath, message: str, expected: str) -> InvalidInput:
    """Return an error about the file as a whole."""
    return InvalidInput(f"{path}: {message}", problems=[Problem(message, expected, mark=Mark(path))])

"""A text file that a person wrote, read safely: what cannot be used is refused with a problem, quickly."""

from __future__ import annotations

import codecs
import os
import re
import stat
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hidl_cli.errors import InvalidInput, Mark, Problem

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

    file: Path
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


def read_source(path: Path) -> Source:
    """The text of a regular UTF-8 file of at most 1 MiB; raises ``InvalidInput`` with one problem for any other."""
    return Source(path, _decoded(path, _read_bytes(path)))


def _read_bytes(path: Path) -> bytes:
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


def _refuse_by_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise _refusal(path, f"not a file: {kind}", "a regular YAML file")
    if status.st_size > MAX_BYTES:
        raise _refusal(path, f"the file is too large: {status.st_size:,} bytes", f"at most {MAX_BYTES:,} bytes")


def _decoded(path: Path, content: bytes) -> str:
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


def _refusal(path: Path, message: str, expected: str) -> InvalidInput:
    """The error for a file that is faulty as a whole."""
    return InvalidInput(f"{path}: {message}", problems=[Problem(message, expected, mark=Mark(path))])

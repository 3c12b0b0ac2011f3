"""Read what a program printed in pieces of bounded size, whatever it is: progress bars, colours, binary data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Bytes read at once, and the longest line that is searched as a whole.
BLOCK = 1 << 18
#: Bytes at the end of a piece of a longer line that are searched again with the next piece.
OVERLAP = 1 << 12

_TAIL = 1 << 16  # bytes in which the last lines are looked for

# A carriage return (progress bars) or a backspace begins the line again. NUL bytes fill holes of some file systems.
_LINE_ENDS = bytes.maketrans(b"\r\b\f\v", b"\n\n\n\n")
# Colours and other control sequences (ECMA-48), window titles. None goes on in the next line, or one that is never
# ended (binary data, a program that was killed) would take lines with it.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text: whole lines, or a part of a very long one. Matches count that begin from ``start`` up to ``stop``."""

    text: bytes
    start: int
    stop: int


def pieces(path: Path) -> Iterator[Piece]:
    """Yield all of a file, cleaned. Raises ``OSError``."""
    held = lead = b""  # what is not yet searched; the byte before it, if it is not the begin of a line
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            body, line_end, rest = (held + _in_lines(block)).rpartition(b"\n")
            if line_end:
                text = lead + without_escapes(body)
                yield Piece(text, len(lead), len(text) + 1)
                lead = b""
            held = rest
            if len(held) > BLOCK:
                text = lead + without_escapes(held)
                stop = max(len(lead), len(text) - OVERLAP)
                yield Piece(text, len(lead), stop)
                lead, held = text[max(0, stop - 1) : stop], text[stop:]
    if held:
        text = lead + without_escapes(held)
        yield Piece(text, len(lead), len(text) + 1)


def without_escapes(text: bytes) -> bytes:
    """Return the text without terminal control sequences."""
    return _ESCAPES.sub(b"", text) if b"\x1b" in text else text


def last_lines(path: Path, count: int = 5, width: int = 160) -> list[str]:
    """Return the last lines of a file that hold text, printable and clipped; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            text = without_escapes(_in_lines(file.read())).decode(errors="replace")
    except OSError:
        return []
    lines = ["".join(c if c.isprintable() else "?" for c in line.rstrip()[: width + 1]) for line in text.split("\n")]
    return [line if len(line) <= width else f"{line[:width]}..." for line in lines if line.strip()][-count:]


def _in_lines(block: bytes) -> bytes:
    return block.translate(_LINE_ENDS, b"\0")

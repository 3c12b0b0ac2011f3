"""Tables as programs print them: titles in one line, and rows below, of which some cells may be empty."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_WORD = re.compile(r"\S+")
_MOST_COLUMNS = 100


def heading(lines: Sequence[str], *titles: str) -> int | None:
    """The number of the line that has these titles, from 0; None where there is none."""
    return next((at for at, line in enumerate(lines) if set(titles) <= set(line.split())), None)


def rows(text: str, *titles: str) -> Iterator[dict[str, str] | None]:
    """Each line below the one with these titles, by the titles of its columns; empty cells are left out.

    None for a line that does not fit: of more words than titles, or of words below no title. Lines that are blank or
    drawn (``-----``) are passed over.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is not None:
        for number in range(at + 1, len(lines)):
            if is_row(lines[number]):
                yield row(lines[at], lines[number])


def is_row(line: str) -> bool:
    """Whether a line holds more than space and drawn lines."""
    return bool(line.strip(" -=+|\t"))


def row(head: str, line: str) -> dict[str, str] | None:
    """One line by the titles in ``head``; None where it does not fit."""
    columns, words = list(_WORD.finditer(head)), list(_WORD.finditer(line))
    if len(columns) > _MOST_COLUMNS:
        return None
    if len(words) == len(columns):
        return {column[0]: word[0] for column, word in zip(columns, words, strict=True)}
    if len(words) > len(columns):
        return None
    found: dict[str, str] = {}
    for word in words:
        below = [column for column in columns if word.start() < column.end() and column.start() < word.end()]
        if not below:
            return None
        best = max(below, key=lambda one: min(word.end(), one.end()) - max(word.start(), one.start()))
        if best[0] in found:
            return None
        found[best[0]] = word[0]
    return found

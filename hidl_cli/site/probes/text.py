"""Texts of programs, cut into their parts."""

from __future__ import annotations

import re
from collections.abc import Iterator


def blocks(start: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """For each place where ``start`` matches: its first group, and the text from there to the next such place."""
    found = list(start.finditer(text))
    for number, one in enumerate(found, start=1):
        yield one[1], text[one.end() : found[number].start() if number < len(found) else None]

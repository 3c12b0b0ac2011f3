"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|&]")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "|": "&#124;", "&": "&amp;"}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are what ``code`` and ``plain`` give, so that bars in them are no borders."""
    lines = [columns, ["---"] * len(columns), *([_cell(text) for text in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def code(text: str) -> str:
    """``text`` in code type, whatever it holds."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def plain(text: str) -> str:
    """``text`` as prose in which only pairs of backticks mean something."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _escaped(text)
    return "`".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), text)


def _cell(text: str) -> str:
    return " ".join(text.split())

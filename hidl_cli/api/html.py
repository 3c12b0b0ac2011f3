"""Small tables for notebooks; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hidl_cli.redaction import shown


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    lines = [f"<tr><th style='text-align:left'>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a head."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{escape(shown(text))}</td>"

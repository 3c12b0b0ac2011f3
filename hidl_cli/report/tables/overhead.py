"""The overhead of Python, as a table for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hidl_cli.analysis.overhead import Overhead

if TYPE_CHECKING:
    from rich.table import Table


def overhead_table(overhead: Overhead) -> Table:
    """Return the table of sizes with C's value, Python's, and the difference."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    of = f" of {overhead.point}" if overhead.point else ""
    rows = Table(title=Text(f"{overhead.metric}{of}, {overhead.unit}"), title_justify="left", title_style="bold")
    rows.box, rows.show_edge, rows.padding = box.SIMPLE_HEAD, False, (0, 0, 0, 1)
    sized = overhead.rows[0].size is not None
    for heading in (*(("bytes",) if sized else ()), "C", "Python", "difference", "of C"):
        rows.add_column(heading, justify="right")
    for row in overhead.rows:
        share = "-" if row.relative is None else f"{row.relative:+.1%}"
        size = (str(row.size),) if sized else ()
        rows.add_row(*size, f"{row.c:,.2f}", f"{row.python:,.2f}", f"{row.difference:+,.2f}", share)
    return rows

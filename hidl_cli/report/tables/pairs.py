"""Metrics measured between every two nodes, as tables for terminals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hidl_cli.analysis.nodes.pairs import Field, Pair, relative_rates

if TYPE_CHECKING:
    from rich.table import Table

MOST_COLUMNS = 12  # nodes: more do not fit on a terminal, and are in the picture
_SLOWEST = 10  # of the nodes are listed
_BEHIND, _FAR_BEHIND = 0.9, 0.7  # of the usual: yellow, red


def pairs_tables(each: Field) -> list[Table]:
    """Return a heat map of the pairs, if it fits, and the slowest nodes."""
    found = [_matrix(each)] if len(each.names) <= MOST_COLUMNS else []
    return [*found, _nodes(each)] if each.nodes else found


def _matrix(each: Field) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rates = relative_rates(each)
    values: Mapping[Pair, float] = {way: v for (a, b), v in each.values.items() for way in ((a, b), (b, a))}
    rows = Table(title=Text(f"{each.metric}, {each.unit}"), title_justify="left", title_style="bold")
    rows.box, rows.show_edge, rows.padding = box.SIMPLE_HEAD, False, (0, 0, 0, 1)
    for heading in ("", *each.names):
        rows.add_column(Text(heading), justify="right" if heading else "left")
    for name in each.names:
        cells = [_cell(values.get((name, other)), rates.get((name, other), 1.0)) for other in each.names]
        rows.add_row(Text(name), *(Text(text, style=style) for text, style in cells))
    return rows


def _cell(value: float | None, rate: float) -> tuple[str, str]:
    style = "red" if rate < _FAR_BEHIND else "yellow" if rate < _BEHIND else "default"
    return ("", "") if value is None else (f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", style)


def _nodes(each: Field) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = Table(title=Text(f"nodes by {each.metric}"), title_justify="left", title_style="bold")
    rows.box, rows.show_edge, rows.padding = box.SIMPLE_HEAD, False, (0, 0, 0, 1)
    for heading in ("node", "of the usual", "by chance", ""):
        rows.add_column(Text(heading), justify="left" if heading in ("node", "") else "right")
    for node in each.nodes[:_SLOWEST]:
        chance = "-" if node.p is None else f"{node.p:.2g}" if node.p >= 0.001 else "<0.001"
        mark = Text("slow", style="bold red") if node.slow else Text("")
        rows.add_row(Text(node.host), f"{node.relative:.3f}", chance, mark)
    return rows

"""What was measured between every two nodes: as tables for terminals, and as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hidl_cli.results.pairs import Field, Pair

if TYPE_CHECKING:
    from rich.table import Table

MOST_COLUMNS = 12  # nodes: more do not fit on a terminal, and are in the picture
_SLOWEST = 10  # of the nodes are listed
_BEHIND, _FAR_BEHIND = 0.9, 0.7  # of the usual: yellow, red


def relative(each: Field) -> dict[Pair, float]:
    """The rate of each pair in terms of the median pair, both ways round: above 1 is better."""
    rates = {pair: value if each.better == "higher" else 1 / value for pair, value in each.values.items()}
    usual = median(rates.values())
    return {way: rate / usual for (a, b), rate in rates.items() for way in ((a, b), (b, a))}


def tables(each: Field) -> list[Table]:
    """The pairs as a heat map, where it fits, and the slowest nodes."""
    found = [_matrix(each)] if len(each.names) <= MOST_COLUMNS else []
    return [*found, _nodes(each)] if each.nodes else found


def _matrix(each: Field) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rates = relative(each)
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


def draw(fields: Sequence[Field], path: Path) -> None:
    """Write the heat maps of all metrics side by side as PNG: each pair's rate in terms of the median pair."""
    import numpy as np
    from matplotlib.figure import Figure

    names = fields[0].names
    side = min(12.0, 2.5 + 0.28 * len(names))
    figure = Figure(figsize=(side * len(fields) + 1, side), layout="constrained")
    for axes, each in zip(figure.subplots(1, len(fields), squeeze=False)[0], fields, strict=True):
        rates = relative(each)
        cells = np.array([[rates.get((a, b), np.nan) for b in names] for a in names])
        image = axes.imshow(cells, cmap="cividis", vmin=0, vmax=max(1.2, float(np.nanmax(cells))))
        slow = {node.host for node in each.slow_nodes}
        labelled = range(0, len(names), max(1, len(names) // 40))
        marks = [f"{names[n]}{' (slow)' if names[n] in slow else ''}" for n in labelled]
        axes.set_xticks(labelled, [names[n] for n in labelled], rotation=90)
        axes.set_yticks(labelled, marks)
        axes.set_title(
            f"{each.metric} (1: the median pair, {median(each.values.values()):.4g} {each.unit})", fontsize=9
        )
        figure.colorbar(image, ax=axes, shrink=0.8)
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(beside, dpi=150)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

"""Heat maps of metrics measured between every two nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hidl_cli.analysis.nodes.pairs import Field, relative_rates


def draw_pairs(fields: Sequence[Field], path: Path) -> None:
    """Write the heat maps of all metrics side by side as PNG: each pair's rate relative to the median pair."""
    import numpy as np
    from matplotlib.figure import Figure

    names = fields[0].names
    side = min(12.0, 2.5 + 0.28 * len(names))
    figure = Figure(figsize=(side * len(fields) + 1, side), layout="constrained")
    for axes, each in zip(figure.subplots(1, len(fields), squeeze=False)[0], fields, strict=True):
        rates = relative_rates(each)
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

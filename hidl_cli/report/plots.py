"""Plots of scaling studies, and heat maps of metrics measured between all pairs of nodes."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hidl_cli.analysis.nodes import Field, relative_rates

if TYPE_CHECKING:
    from hidl_cli.analysis.scaling import Study


def draw_pairs(fields: Sequence[Field], path: Path) -> None:
    """Plot heat maps of all metrics side by side as PNG, with the rate of each pair relative to the median pair."""
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
        axes.set_title(f"{each.metric} (1 = median pair, {median(each.values.values()):.4g} {each.unit})", fontsize=9)
        figure.colorbar(image, ax=axes, shrink=0.8)
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(beside, dpi=150)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


# Plots of scaling studies: measured and ideal performance, and the efficiency with its target.


# Blue and vermilion from the Okabe-Ito palette, which are distinguishable with any type of colour vision.
MEASURED = "#0072B2"
TARGET = "#D55E00"
FAINT = "#767676"
WIDTH, HEIGHT = 6.4, 5.6  # inches, for 10-point labels at a width of 640 pixels
CHARACTERS = 98  # number of 9-point characters that fill the width
WIDEST_LINEAR = 12  # times the baseline; on a wider linear axis, small steps would be crowded together


def draw_scaling(study: Study, path: Path) -> None:
    """Plot a study as PNG or SVG, depending on the suffix of ``path``.

    Raises:
        ValueError: If the suffix is neither .png nor .svg.
    """
    from matplotlib.figure import Figure

    if path.suffix not in {".png", ".svg"}:
        raise ValueError(f"unsupported image format {path.name}: must be .png or .svg")
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _measured(upper, study)
    _efficiency(lower, study)
    _steps_axis(lower, study)
    figure.align_ylabels()
    _title(figure, study)
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(beside, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _title(figure: Any, study: Study) -> None:
    """Write title, verdict and reason above the axes, which use the remaining height."""
    verdict = study.verdict or "no verdict"
    reason = textwrap.wrap(study.reason, CHARACTERS)
    top, line = 1 - 0.1 / HEIGHT, 0.18 / HEIGHT
    figure.text(0.015, top, f"{study.kind.capitalize()} scaling of {study.metric}: {verdict}", va="top", weight="bold")
    figure.text(0.015, top - 1.4 * line, "\n".join(reason), va="top", fontsize=9)
    figure.get_layout_engine().set(rect=(0, 0, 1, top - (1.9 + len(reason)) * line))


def _measured(axes: Any, study: Study) -> None:
    """Plot the throughput (weak) or speed-up (strong) of each step, with its interval and the ideal line."""
    from matplotlib.ticker import LogLocator, NullLocator

    scale = study.baseline.mean if study.kind == "weak" else 1.0
    ns = [step.n for step in study.steps]
    ideal = [scale * step.ideal_speedup for step in study.steps]
    measured = [scale * step.speedup for step in study.steps]
    errors = [[part * whole for part, whole in zip(side, ideal, strict=True)] for side in _errors(study)]
    highest = max(value + error for value, error in zip(measured, errors[1], strict=True))
    axes.plot(ns, ideal, "--", color=FAINT, label="ideal")
    axes.errorbar(
        ns,
        measured,
        errors,
        fmt="o-",
        color=MEASURED,
        capsize=3,
        label=f"measured, {study.confidence * 100:.3g} % interval",
    )
    baseline = f"{study.baseline.n} {study.step_unit}"
    axes.set_ylabel(study.unit if study.kind == "weak" else f"speed-up over {baseline}")
    if _spans_octaves(study):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(*ideal, highest))
    axes.yaxis.set_major_formatter("{x:,.12g}")
    axes.legend(loc="upper left", frameon=False)
    _tidy(axes)


def _efficiency(axes: Any, study: Study) -> None:
    """Plot the efficiency of each step with its interval, the ideal and the target."""
    axes.axhline(1, linestyle="--", color=FAINT)
    axes.axhline(study.target, color=TARGET)
    axes.annotate(
        f"target\n{study.target:g}",
        (1, study.target),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=TARGET,
    )
    ns = [step.n for step in study.steps]
    efficiencies = [step.efficiency for step in study.steps]
    axes.errorbar(ns, efficiencies, _errors(study), fmt="o-", color=MEASURED, capsize=3)
    axes.set_ylabel("efficiency")
    axes.margins(y=0.12)
    _tidy(axes)


def _errors(study: Study) -> tuple[list[float], list[float]]:
    """Return the lengths of the error bars below and above each step's efficiency, or 0 if there is no interval."""
    down = [step.efficiency - step.interval.low if step.interval else 0.0 for step in study.steps]
    up = [step.interval.high - step.efficiency if step.interval else 0.0 for step in study.steps]
    return down, up


def _spans_octaves(study: Study) -> bool:
    return study.steps[-1].ideal_speedup > WIDEST_LINEAR


def _steps_axis(axes: Any, study: Study) -> None:
    """Label the measured steps, omitting the smaller one of two labels that would overlap."""
    ns = [step.n for step in study.steps]
    position = math.log if _spans_octaves(study) else float
    if _spans_octaves(study):
        axes.set_xscale("log")
    span = position(ns[-1]) - position(ns[0])
    labelled: list[int] = []
    for n in reversed(ns):
        if not labelled or position(labelled[-1]) - position(n) > 0.06 * span:
            labelled.append(n)
    axes.set_xticks(labelled, [f"{n:,}" for n in labelled])
    axes.minorticks_off()
    axes.set_xlabel(study.step_unit)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)

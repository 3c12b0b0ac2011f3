"""Tables for terminals: scaling studies, sweeps, pairs of nodes, and the overhead of Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hidl_cli.analysis.nodes import Field, Pair, relative_rates
from hidl_cli.redaction import redact_variable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from hidl_cli.analysis.ranking import Overhead, Ranking
    from hidl_cli.analysis.scaling import StepResult, Study


def overhead_table(overhead: Overhead) -> Table:
    """Return a table with the values of C and Python, and their difference, by message size."""
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


# Metrics measured between all pairs of nodes.


MOST_COLUMNS = 12  # nodes; more do not fit on a terminal and are only shown in the plot
_SLOWEST = 10  # number of nodes to list
_BEHIND, _FAR_BEHIND = 0.9, 0.7  # rates relative to the median below which cells are yellow and red


def pairs_tables(each: Field) -> list[Table]:
    """Return a heat map of the pairs if it fits on the terminal, and a table of the slowest nodes."""
    found = [_matrix(each)] if len(each.names) <= MOST_COLUMNS else []
    return [*found, _nodes(each)] if each.nodes else found


def _matrix(each: Field) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rates = relative_rates(each)
    values: Mapping[Pair, float] = {pair: v for (a, b), v in each.values.items() for pair in ((a, b), (b, a))}
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
    for heading in ("node", "of median", "by chance", ""):
        rows.add_column(Text(heading), justify="left" if heading in ("node", "") else "right")
    for node in each.nodes[:_SLOWEST]:
        chance = "-" if node.p is None else f"{node.p:.2g}" if node.p >= 0.001 else "<0.001"
        mark = Text("slow", style="bold red") if node.slow else Text("")
        rows.add_row(Text(node.host), f"{node.relative:.3f}", chance, mark)
    return rows


# Scaling studies and sweeps, for terminals of at least 80 columns.


BAR_WIDTH, MIN_BAR_WIDTH = 10, 4
COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow", None: "default"}


def scaling_table(study: Study) -> Table:
    """Return a table with one row per step, and the verdict, reason and hint as its caption.

    The table shows means with the coefficient of variation of the repetitions, efficiencies with their intervals, and
    bars for the fraction of the ideal. It contains only ASCII characters if the console does not support others.
    """
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table(
        title=Text(f"{study.kind.capitalize()} scaling of {study.metric}"),
        title_justify="left",
        title_style="bold",
        caption=_conclusion(study),
        caption_justify="left",
        caption_style="default",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0, 0, 1),
    )
    cells = [_cells(step) for step in study.steps]
    headings = (
        study.step_unit,
        "runs",
        study.unit,
        "CV",
        "speed-up",
        "efficiency",
        f"{study.confidence * 100:.3g} % interval",
    )
    for heading, column in zip(headings, zip(*cells, strict=True), strict=True):
        width = max(Text.from_markup(cell).cell_len for cell in column)  # the metric's heading may wrap; values may not
        rows.add_column(Text(heading), justify="right", no_wrap=heading != study.unit, min_width=width)
    rows.add_column("of ideal", min_width=MIN_BAR_WIDTH, max_width=BAR_WIDTH)
    for step, row in zip(study.steps, cells, strict=True):
        rows.add_row(
            *row, ProgressBar(total=1, completed=step.efficiency, complete_style="cyan", finished_style="cyan")
        )
    return rows


def ranking_table(ranking: Ranking) -> Table:
    """Return a table with one row per point of a sweep, in the order in which the points ran.

    The best point is green; if points are compared with a default, the best one that exceeds the default is green.
    Points that are worse than the best or the default by more than the noise are red.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = Table(title=Text(f"Matrix, by {ranking.metric}"), title_justify="left", title_style="bold")
    rows.box, rows.show_edge, rows.padding = box.SIMPLE_HEAD, False, (0, 0, 0, 1)
    for name in ranking.entries[0].point:
        rows.add_column(Text(name))
    for heading in (
        "runs",
        ranking.unit,
        "CV",
        "of the best" if ranking.default is None else "of default",
        f"{ranking.confidence * 100:.3g} % interval",
    ):
        rows.add_column(Text(heading), justify="right")
    for entry in ranking.entries:
        best = ranking.best if ranking.default is None else ranking.winner
        colour = "green" if entry is best else "red" if entry.is_behind else "default"
        rows.add_row(
            *(Text(redact_variable(name, str(value)), overflow="fold") for name, value in entry.point.items()),
            str(entry.repetitions),
            four_digits(entry.mean),
            "-" if entry.variation is None else f"{entry.variation:.1%}",
            f"[{colour}]{entry.relative:.3f}[/]",
            f"{entry.interval.low:.3f} to {entry.interval.high:.3f}" if entry.interval else "-",
        )
    return rows


def _cells(step: StepResult) -> tuple[str, ...]:
    colour = COLOURS[step.verdict]
    return (
        str(step.n),
        str(step.repetitions),
        four_digits(step.mean),
        "-" if step.variation is None else f"{step.variation:.1%}",
        f"{step.speedup:.2f}",
        f"[{colour}]{step.efficiency:.3f}[/]",
        f"{step.interval.low:.3f} to {step.interval.high:.3f}" if step.interval else "-",
    )


def _conclusion(study: Study) -> Text:
    """Return the verdict, the reason, the hint and additional results."""
    from rich.text import Text

    text = Text("\n")
    text.append(study.verdict or "no verdict", f"bold {COLOURS[study.verdict]}")
    text.append(f": {study.reason}")
    if study.hint:
        text.append(f"\nnext: {study.hint}")
    for line in _more(study):
        text.append(f"\n{line}")
    return text


def _more(study: Study) -> Iterator[str]:
    """Yield additional results: the baseline, slow nodes, the serial fraction and the reference."""
    if study.against != "single":
        yield "baseline: " + {"copies": "concurrent copies", "history": "earlier runs"}[study.against]
    slow = [f"{node.host} ({node.relative:.2f} of the median)" for node in study.nodes if node.slow]
    if slow and "slow node" not in study.reason:
        yield f"slow: {', '.join(slow)}"
    if study.fit:
        overall, interval = study.fit.overall, study.fit.overall.interval
        known = f" ({interval.low:.4f} to {interval.high:.4f})" if interval else ""
        grows = (
            f"; it increases with the number of {study.step_unit}, as communication does" if study.fit.rising else ""
        )
        yield f"serial fraction ({study.fit.law.capitalize()}): {overall.value:.4f}{known}{grows}"
    if study.reference:
        yield study.reference


def four_digits(value: float) -> str:
    """Format a positive number with four significant digits and no exponent: 0.03061, 26.14, 13,457."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"

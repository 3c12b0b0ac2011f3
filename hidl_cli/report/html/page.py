"""Render the page's model as HTML; a pure function of the model."""

from __future__ import annotations

import base64
import hashlib

from markupsafe import Markup

from hidl_cli import paths
from hidl_cli.report import text
from hidl_cli.report.html import charts
from hidl_cli.report.model import Comparison, Curve, Outcome, Page
from hidl_cli.templates import render_page

_CLASSES = 3  # of better and of worse in the heat map
_STEP = 0.03  # of a class: 3 %, so that ±1 % of noise stays colourless


def to_html(page: Page) -> str:
    """Return the whole document with inline style, script and drawings; its policy forbids all requests."""
    style, script = _shipped("style.css"), _shipped("script.js")
    return render_page(
        "report/page.html.j2",
        {
            "page": page,
            "style": style,
            "script": script,
            "policy": _policy(style, script),
            "charts": charts,
            "text": text,
            "Outcome": Outcome,
            "shade": shade,
            "ratios": ratios,
            "side_by_side": side_by_side,
            "on_page": {run.id for run in page.runs},
            "newest": {standing.newest.run for standing in page.standings},
        },
    )


def shade(deviation: float) -> str:
    """Return the class of a cell of the heat map: ``worse-3`` ... ``even`` ... ``better-3``."""
    degree = min(_CLASSES, int((abs(deviation) + _STEP / 2) / _STEP))
    return f"{'worse' if deviation < 0 else 'better'}-{degree}" if degree else "even"


def ratios(curve: Curve) -> list[tuple[int, float, float | None, float | None]]:
    """Yield the rows of a curve's table: size, value, baseline's value, ratio."""
    before = dict(curve.baseline.points) if curve.baseline else {}
    return [
        (size, value, before.get(size), value / before[size] if before.get(size) else None)
        for size, value in curve.line.points
    ]


def side_by_side(comparison: Comparison) -> list[tuple[int, list[float | None], list[float | None]]]:
    """Yield the rows of a comparison's table: size, each line's value, and their differences from the first."""
    lines = [dict(line.points) for _, line in comparison.lines]
    rows = []
    for size in sorted({size for line in lines for size in line}):
        first, *others = values = [line.get(size) for line in lines]
        differences = [None if first is None or other is None else other - first for other in others]
        rows.append((size, values, differences))
    return rows


def _policy(style: str, script: str) -> str:
    """Return the content security policy: only this style and this script, and no requests."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_digest(style)}",
            f"script-src {_digest(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _shipped(name: str) -> Markup:
    """Return one of the report's own files unescaped: it has no data of runs."""
    return Markup((paths.shipped() / "templates" / "report" / name).read_text(encoding="utf-8"))

"""The plan as an SVG picture: a timeline of forward and backward passes per partition."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from hyparflow.planning.tables import PlanView, bar_kind, duration, is_other, other_bars, summary

if TYPE_CHECKING:
    from hyparflow.planning.prediction import PlannedSpan

WIDTH, LEFT, RIGHT, TOP = 1200, 110, 150, 92
ROW, BAR = 40, 28

#: Colours are CSS classes, so that the picture follows the reader's light or dark scheme.
_STYLE = """
svg { --paper: #ffffff; --ink: #1f2933; --faint: #6b7785; --line: #d9dee4; --idle: #f0f2f5;
      --forward: #4c86c6; --backward: #e0993a; --fused: #8a6bb8; --update: #6aa56e; --label: #ffffff;
      --label-backward: #1f1300; --label-other: #1f1300; }
@media (prefers-color-scheme: dark) {
svg { --paper: #14181d; --ink: #e6eaef; --faint: #98a3b0; --line: #333b45; --idle: #20262d;
      --forward: #5b97d8; --backward: #d98f2f; --fused: #9d80cc; --update: #63a068; --label: #08131f;
      --label-backward: #1f1300; --label-other: #f2f5f8; } }
text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 13px; fill: var(--ink); }
.faint { fill: var(--faint); font-size: 12px; } .title { font-size: 15px; font-weight: 600; }
.paper { fill: var(--paper); } .idle { fill: var(--idle); } .grid { stroke: var(--line); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .fused { fill: var(--fused); }
.update { fill: var(--update); }
.other { opacity: 0.62; } rect.bar { stroke: var(--paper); stroke-width: 0.8; }
.number { font-size: 11px; text-anchor: middle; fill: var(--label); } .on-backward { fill: var(--label-backward); }
.on-other { fill: var(--label-other); }
"""


def drawing(plan: PlanView) -> str:
    """Draw a step's timeline as SVG.

    Numbers in the bars are micro-batches; paler bars are odd chunks or GEMS' second pipeline; the rest of a row is the
    bubble.
    """
    timeline = plan.timeline
    end = max(plan.prediction.step_seconds, timeline.seconds) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / end
    height = TOP + ROW * plan.partitions + 48
    first, second = summary(plan).split("\n")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(first, quote=True)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="16" y="26">{escape(first)}</text>',
        f'<text class="faint" x="16" y="46">{escape(second)}</text>',
        *_legend(plan),
    ]
    for partition, (spans, bubble) in enumerate(zip(timeline.partitions, plan.bubble, strict=True)):
        y = TOP + ROW * partition
        parts.append(f'<text x="16" y="{y + BAR / 2 + 5}">partition {partition}</text>')
        parts.append(f'<rect class="idle" x="{LEFT}" y="{y}" width="{end * scale:.2f}" height="{BAR}"/>')
        parts += [_bar(plan, span, y, scale) for span in spans if span.end > span.begin]
        parts.append(_tail(plan, partition, spans[-1].end, y, scale))
        parts.append(
            f'<text class="faint" x="{LEFT + end * scale + 10:.2f}" y="{y + BAR / 2 + 4}">bubble {bubble:.0%}</text>'
        )
    parts += _axis(end, scale, TOP + ROW * plan.partitions)
    return "\n".join([*(part for part in parts if part), "</svg>"]) + "\n"


def _bar(plan: PlanView, span: PlannedSpan, y: float, scale: float) -> str:
    action = span.action
    x, width = LEFT + span.begin * scale, (span.end - span.begin) * scale
    pale = " other" if is_other(plan, action) else ""
    kind = bar_kind(plan, action)
    label = ""
    if width >= 7 * len(str(action.micro_batch)) + 3:
        over = " on-other" if pale else " on-backward" if action.kind == "backward" else ""
        label = f'<text class="number{over}" x="{x + width / 2:.2f}" y="{y + BAR / 2 + 4}">{action.micro_batch}</text>'
    title = f"{action}: {duration(span.begin)} to {duration(span.end)}"
    return (
        f'<g><title>{escape(title)}</title><rect class="bar {kind}{pale}" x="{x:.2f}" y="{y}" '
        f'width="{max(width, 0.3):.2f}" height="{BAR}"/>{label}</g>'
    )


def _tail(plan: PlanView, partition: int, begin: float, y: float, scale: float) -> str:
    seconds = plan.prediction.tail_seconds[partition]
    if seconds * scale < 0.5:
        return ""
    return (
        f"<g><title>sum and update: {duration(seconds)}</title>"
        f'<rect class="bar update" x="{LEFT + begin * scale:.2f}" y="{y}" width="{seconds * scale:.2f}" '
        f'height="{BAR}"/></g>'
    )


def _legend(plan: PlanView) -> list[str]:
    entries = [
        ("forward", "forward"),
        ("backward", "backward"),
        ("fused", "both in one"),
        ("update", "sum of gradients, update"),
        ("idle", "idle"),
    ]
    if others := other_bars(plan):
        entries.append(("forward other", others))
    parts, x = [], LEFT
    for kind, words in entries:
        parts.append(f'<rect class="{kind}" x="{x}" y="62" width="14" height="14" rx="2"/>')
        parts.append(f'<text class="faint" x="{x + 20}" y="74">{words}</text>')
        x += 48 + int(6.2 * len(words))
    return parts


def _axis(end: float, scale: float, y: float) -> list[str]:
    """Draw ticks at round times."""
    power = 10.0 ** math.floor(math.log10(end / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= end / 10)
    parts = [f'<line class="grid" x1="{LEFT}" x2="{LEFT + end * scale:.2f}" y1="{y}" y2="{y}"/>']
    for tick in range(int(end / step) + 1):
        x = LEFT + tick * step * scale
        parts.append(f'<line class="grid" x1="{x:.2f}" x2="{x:.2f}" y1="{y}" y2="{y + 5}"/>')
        parts.append(
            f'<text class="faint" x="{x:.2f}" y="{y + 20}" text-anchor="middle">{duration(tick * step)}</text>'
        )
    return parts

"""The plan as a picture for a terminal: a strip of forward and backward passes per partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hyparflow.planning import bars

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from hyparflow.planning.plan import Plan

_LETTERS = {"forward": "F", "backward": "B", "fused": "X"}
_STYLES = {"F": "blue", "B": "yellow", "X": "magenta", "U": "green", ".": "dim"}


class Strips:
    """A step's timeline, as wide as there is room. Numbers are micro-batches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self._plan
        label, share = len(str(plan.partitions - 1)), len(" 100%")
        yield Text(_title(plan), style="italic")
        for partition, bubble in enumerate(plan.prediction.bubble):
            row = Text(f"{partition:>{label}} ")
            for bar in strip(plan, partition, max(1, options.max_width - label - 1 - share)):
                row.append(bar, _STYLES[bar[0].upper()])
            yield row.append(f"{bubble:>{share}.0%}")


def strip(plan: Plan, partition: int, width: int) -> list[str]:
    """The bars of a partition, ``width`` characters in all; dots are the bubble."""
    timeline = plan.timeline
    scale = width / (max(plan.prediction.step_seconds, timeline.seconds) or 1.0)
    found, at = [], 0
    for begin, end, label in _passes(plan, partition):
        first, last = round(begin * scale), min(round(end * scale), width)
        if last > first:
            found += ["." * (first - at), label.ljust(last - first, "-")[: last - first]]
            at = last
    return [bar for bar in (*found, "." * (width - at)) if bar]


def _passes(plan: Plan, partition: int) -> Iterator[tuple[float, float, str]]:
    """Begin, end and label of each; what the last stage does "backward" is done already."""
    spans = plan.timeline.partitions[partition]
    for span in spans:
        action, kind = span.action, bars.kind(plan, span.action)
        if (kind, action.kind) != ("fused", "backward"):
            letter = _LETTERS[kind].lower() if bars.is_other(plan, action) else _LETTERS[kind]
            yield span.begin, span.end, f"{letter}{action.micro_batch}"
    end = spans[-1].end
    yield end, end + plan.prediction.tail_seconds[partition], "U"


def _title(plan: Plan) -> str:
    others = bars.others(plan)
    small = f", small: {others}" if others else ""
    return f"Timeline (a step): F forward, B backward, X both, U sum and update, dots: bubble{small}"

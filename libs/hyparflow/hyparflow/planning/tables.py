"""The plan as text for a terminal: tables, and a strip of forward and backward passes per partition."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from hyparflow.planning.prediction import Prediction, Timeline
    from hyparflow.planning.stages import Stage
    from hyparflow.schedules import Action
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_LETTERS = {"forward": "F", "backward": "B", "fused": "X"}
_STYLES = {"F": "blue", "B": "yellow", "X": "magenta", "U": "green", ".": "dim"}


class PlanView(Protocol):
    """The attributes of a plan that tables and pictures show; ``hyparflow.planning.plan.Plan`` has them."""

    @property
    def model(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def spatial(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def pipelines(self) -> int: ...
    @property
    def stages(self) -> Sequence[Stage]: ...
    @property
    def prediction(self) -> Prediction: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def bubble(self) -> Sequence[float]: ...
    @property
    def tensors(self) -> Mapping[int, tuple[str, int]]: ...
    @property
    def costs(self) -> str: ...
    def owner(self, stage: int, pipeline: int = 0) -> int: ...


def size(count: float) -> str:
    """Format bytes, as in 1.5 MiB."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Format seconds, as in 85 ms."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.2g} us"


def summary(plan: PlanView) -> str:
    """Return the plan in two lines."""
    chunks = f", {plan.chunks} chunks" if plan.chunks > 1 else ""
    parts = f"{plan.spatial} parts of the images x " if plan.spatial > 1 else ""
    prediction = plan.prediction
    rate = plan.batch_size / prediction.step_seconds if prediction.step_seconds else 0.0
    bubble = sum(plan.bubble) / plan.partitions
    return (
        f"{plan.model}: {plan.partitions} partitions x {parts}{plan.replicas} replicas, {plan.schedule}{chunks}, "
        f"{plan.micro_batches} micro-batches of {plan.micro_batch_size} (batch {plan.batch_size})\n"
        f"step {duration(prediction.step_seconds)}, {rate:.4g} samples/s, bubble {bubble:.0%}, at most "
        f"{size(max(prediction.peak_bytes))} per rank, costs {plan.costs}"
    )


def tables(plan: PlanView) -> Group:
    """Return the summary, stages, partitions, and the timeline of a step."""
    return Group(summary(plan), _stages(plan), _partitions(plan), Strips(plan))


def text(plan: PlanView, width: int = 140) -> str:
    """Return the tables as plain text."""
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(tables(plan))
    return written.getvalue().rstrip()


def _table(title: str, *numbers: str) -> Table:
    """Create a table that starts with columns of numbers; if it is narrow, only names are wrapped."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    _add_numbers(table, *numbers)
    return table


def _add_numbers(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def _stages(plan: PlanView) -> Table:
    marked = ", *: recomputes" if any(stage.recompute for stage in plan.stages) else ""
    table = _table(f"Stages (a micro-batch{marked})", "stage", "partition", "nodes")
    table.add_column("from", overflow="fold", min_width=5)
    table.add_column("to", overflow="fold", min_width=5)
    _add_numbers(table, "forward", "backward", "weights", "held")
    table.add_column("sends", overflow="fold", min_width=7)
    for stage in plan.stages:
        owners = ", ".join(str(plan.owner(stage.index, pipeline)) for pipeline in range(plan.pipelines))
        table.add_row(
            str(stage.index),
            owners,
            str(len(stage.nodes)),
            stage.first,
            stage.last,
            duration(stage.forward_seconds),
            duration(stage.backward_seconds) + ("*" if stage.recompute else ""),
            size(stage.parameter_bytes),
            size(stage.activation_bytes),
            "\n".join(_sent(plan, tensor, to) for tensor, to in stage.sends.items()) or "-",
        )
    return table


def _sent(plan: PlanView, tensor: int, to: tuple[int, ...]) -> str:
    name, sample = plan.tensors[tensor]
    return f"{name} ({size(sample * plan.micro_batch_size)}) to {', '.join(map(str, to))}"


def _partitions(plan: PlanView) -> Table:
    table = _table("Partitions (a step)", "partition", "busy", "bubble", "sum and update", "peak memory")
    prediction = plan.prediction
    rows = zip(prediction.busy_seconds, plan.bubble, prediction.tail_seconds, prediction.peak_bytes, strict=True)
    for partition, (busy, bubble, tail, peak) in enumerate(rows):
        table.add_row(str(partition), duration(busy), f"{bubble:.0%}", duration(tail), size(peak))
    return table


def bar_kind(plan: PlanView, action: Action) -> str:
    """Return ``forward``, ``backward``, or ``fused`` if the stage does both in one program."""
    return action.kind if plan.stages[action.stage].sends else "fused"


def is_other(plan: PlanView, action: Action) -> bool:
    """Return whether an action belongs to an odd chunk or to GEMS' second pipeline."""
    return bool(action.pipeline or (action.stage // plan.partitions) % 2)


def other_bars(plan: PlanView) -> str | None:
    """Return the name of the bars that `is_other` selects in this plan, None if it has none."""
    return "odd chunks" if plan.chunks > 1 else "second pipeline" if plan.pipelines > 1 else None


class Strips:
    """A step's timeline, as wide as the terminal. Numbers are micro-batches."""

    def __init__(self, plan: PlanView) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self._plan
        label, share = len(str(plan.partitions - 1)), len(" 100%")
        yield Text(_title(plan), style="italic")
        for partition, bubble in enumerate(plan.bubble):
            row = Text(f"{partition:>{label}} ")
            for bar in strip(plan, partition, max(1, options.max_width - label - 1 - share)):
                row.append(bar, _STYLES[bar[0].upper()])
            yield row.append(f"{bubble:>{share}.0%}")


def strip(plan: PlanView, partition: int, width: int) -> list[str]:
    """Return the bars of a partition with a total of ``width`` characters; dots are the bubble."""
    timeline = plan.timeline
    scale = width / (max(plan.prediction.step_seconds, timeline.seconds) or 1.0)
    found, at = [], 0
    for begin, end, label in _passes(plan, partition):
        first, last = round(begin * scale), min(round(end * scale), width)
        if last > first:
            found += ["." * (first - at), label.ljust(last - first, "-")[: last - first]]
            at = last
    return [bar for bar in (*found, "." * (width - at)) if bar]


def _passes(plan: PlanView, partition: int) -> Iterator[tuple[float, float, str]]:
    """Yield begin, end and label of each pass; the "backward" pass of the last stage is already included."""
    spans = plan.timeline.partitions[partition]
    for span in spans:
        action, kind = span.action, bar_kind(plan, span.action)
        if (kind, action.kind) != ("fused", "backward"):
            letter = _LETTERS[kind].lower() if is_other(plan, action) else _LETTERS[kind]
            yield span.begin, span.end, f"{letter}{action.micro_batch}"
    end = spans[-1].end
    yield end, end + plan.prediction.tail_seconds[partition], "U"


def _title(plan: PlanView) -> str:
    others = other_bars(plan)
    small = f", small: {others}" if others else ""
    return f"Timeline (a step): F forward, B backward, X both, U sum and update, dots: bubble{small}"

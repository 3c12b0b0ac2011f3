"""The plan in words and numbers, for a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from hyparflow.planning.strips import Strips

if TYPE_CHECKING:
    from hyparflow.planning.plan import Plan

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes as a person reads them: 1.5 MiB."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 85 ms."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.2g} us"


def summary(plan: Plan) -> str:
    """The plan in two lines."""
    chunks = f", {plan.chunks} chunks" if plan.chunks > 1 else ""
    prediction = plan.prediction
    rate = plan.batch_size / prediction.step_seconds if prediction.step_seconds else 0.0
    bubble = sum(prediction.bubble) / plan.partitions
    return (
        f"{plan.model}: {plan.partitions} partitions x {plan.replicas} replicas, {plan.schedule}{chunks}, "
        f"{plan.micro_batches} micro-batches of {plan.micro_batch_size} (batch {plan.batch_size})\n"
        f"step {duration(prediction.step_seconds)}, {rate:.4g} samples/s, bubble {bubble:.0%}, at most "
        f"{size(max(prediction.peak_bytes))} per rank, costs {plan.costs}"
    )


def tables(plan: Plan) -> Group:
    """Summary, stages, partitions, and the timeline of a step."""
    return Group(summary(plan), _stages(plan), _partitions(plan), Strips(plan))


def text(plan: Plan, width: int = 140) -> str:
    """The same without colour."""
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(tables(plan))
    return written.getvalue().rstrip()


def _table(title: str, *numbers: str) -> Table:
    """A table that begins with these columns of numbers; where it is narrow, only names are broken into lines."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    _add_numbers(table, *numbers)
    return table


def _add_numbers(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def _stages(plan: Plan) -> Table:
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


def _sent(plan: Plan, tensor: int, to: tuple[int, ...]) -> str:
    name, sample = plan.tensors[tensor]
    return f"{name} ({size(sample * plan.micro_batch_size)}) to {', '.join(map(str, to))}"


def _partitions(plan: Plan) -> Table:
    table = _table("Partitions (a step)", "partition", "busy", "bubble", "sum and update", "peak memory")
    prediction = plan.prediction
    rows = zip(prediction.busy_seconds, prediction.bubble, prediction.tail_seconds, prediction.peak_bytes, strict=True)
    for partition, (busy, bubble, tail, peak) in enumerate(rows):
        table.add_row(str(partition), duration(busy), f"{bubble:.0%}", duration(tail), size(peak))
    return table

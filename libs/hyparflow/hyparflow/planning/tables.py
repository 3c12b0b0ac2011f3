"""The plan in words and numbers: tables for a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table

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
    """Summary, stages, and partitions."""
    return Group(summary(plan), _stages(plan), _partitions(plan))


def text(plan: Plan, width: int = 140) -> str:
    """The same without colour."""
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(tables(plan))
    return written.getvalue().rstrip()


def _stages(plan: Plan) -> Table:
    table = Table(title="Stages (a micro-batch)", title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("partition", justify="right")
    table.add_column("nodes", justify="right")
    table.add_column("from", overflow="fold")
    table.add_column("to", overflow="fold")
    for title in ("forward", "backward", "weights", "held"):
        table.add_column(title, justify="right")
    table.add_column("sends")
    for stage in plan.stages:
        owners = ", ".join(str(plan.owner(stage.index, pipeline)) for pipeline in range(plan.pipelines))
        table.add_row(
            str(stage.index),
            owners,
            str(len(stage.nodes)),
            stage.first,
            stage.last,
            duration(stage.forward_seconds),
            duration(stage.backward_seconds) + (" (recomputes)" if stage.recompute else ""),
            size(stage.parameter_bytes),
            size(stage.activation_bytes),
            "\n".join(_sent(plan, tensor, to) for tensor, to in stage.sends.items()) or "-",
        )
    return table


def _sent(plan: Plan, tensor: int, to: tuple[int, ...]) -> str:
    name, sample = plan.tensors[tensor]
    return f"{name} ({size(sample * plan.micro_batch_size)}) to {', '.join(map(str, to))}"


def _partitions(plan: Plan) -> Table:
    table = Table(title="Partitions (a step)", title_justify="left")
    for title in ("partition", "busy", "bubble", "sum and update", "peak memory"):
        table.add_column(title, justify="right")
    prediction = plan.prediction
    rows = zip(prediction.busy_seconds, prediction.bubble, prediction.tail_seconds, prediction.peak_bytes, strict=True)
    for partition, (busy, bubble, tail, peak) in enumerate(rows):
        table.add_row(str(partition), duration(busy), f"{bubble:.0%}", duration(tail), size(peak))
    return table

"""Timelines in Chrome's trace format (chrome://tracing, Perfetto): one process per rank.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(complete events "X" with ``ts`` and ``dur`` in microseconds, metadata events "M").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """What a rank did in ``lane`` from ``begin`` to ``end``, seconds since the first of all ranks began."""

    name: str
    lane: str
    begin: float
    end: float
    step: int


#: The rows of a rank, from above.
LANES = ("compute", "messages", "allreduce", "update", "predicted")


def document(ranks: Sequence[Iterable[Event]], labels: Sequence[str]) -> dict[str, Any]:
    """The trace of all ranks; ``labels`` name them."""
    events: list[dict[str, Any]] = []
    for rank, (own, label) in enumerate(zip(ranks, labels, strict=True)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": label}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}}
            for number, lane in enumerate(LANES)
        ]
        events += [
            {
                "ph": "X",
                "name": event.name,
                "cat": event.lane,
                "pid": rank,
                "tid": LANES.index(event.lane),
                "ts": event.begin * 1e6,
                "dur": (event.end - event.begin) * 1e6,
                "args": {"step": event.step},
            }
            for event in own
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write(path: Path, ranks: Sequence[Iterable[Event]], labels: Sequence[str]) -> None:
    """Write the trace beside its place, and rename it into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(document(ranks, labels)), encoding="utf-8")
    partial.replace(path)

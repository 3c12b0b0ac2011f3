"""Recorded steps: the trace for chrome://tracing and Perfetto, and the times for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

from hyparflow.engine.runner import Span
from hyparflow.training.recorder import LANES, Event, StepTimes, trace_document, write_trace


def test_an_event_lies_in_its_ranks_lane_in_microseconds(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", [[], [Event("update", "update", 0.001, 0.0035, 2)]], ["rank 0", "rank 1"])

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    (event,) = [each for each in events if each["ph"] == "X"]
    assert (event["pid"], event["tid"], event["ts"], event["dur"]) == (1, LANES.index("update"), 1000.0, 2500.0)


def test_ranks_and_lanes_have_names() -> None:
    events = trace_document([[]], ["rank 0: partition 0"])["traceEvents"]

    names = [event["args"]["name"] for event in events if event["name"].endswith("_name")]
    assert names == ["rank 0: partition 0", *LANES]


def test_waiting_is_part_of_the_step_and_not_of_the_busy_time() -> None:
    spans = [Span("forward", 1.0, 2.0, 0, 0), Span("wait", 2.0, 4.5, 0, 0), Span("update", 4.5, 5.0)]

    assert StepTimes.of(7, spans) == StepTimes(7, 4.0, 1.5)

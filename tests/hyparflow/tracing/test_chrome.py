"""A trace is what chrome://tracing and Perfetto read: one process per rank, microseconds."""

from __future__ import annotations

import json
from pathlib import Path

from hyparflow.tracing import chrome
from hyparflow.tracing.chrome import Event


def test_an_event_lies_in_its_ranks_lane_in_microseconds(tmp_path: Path) -> None:
    chrome.write(tmp_path / "trace.json", [[], [Event("update", "update", 0.001, 0.0035, 2)]], ["rank 0", "rank 1"])

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    (event,) = [each for each in events if each["ph"] == "X"]
    assert (event["pid"], event["tid"], event["ts"], event["dur"]) == (1, chrome.LANES.index("update"), 1000.0, 2500.0)


def test_ranks_and_lanes_have_names() -> None:
    events = chrome.document([[]], ["rank 0: partition 0"])["traceEvents"]

    names = [event["args"]["name"] for event in events if event["name"].endswith("_name")]
    assert names == ["rank 0: partition 0", *chrome.LANES]

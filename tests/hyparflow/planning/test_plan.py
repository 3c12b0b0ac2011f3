"""The plan as an object: printed, drawn, saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hyparflow.errors import PlanError
from hyparflow.planning.plan import Plan
from hyparflow.planning.planner import plan
from hyparflow.planning.tables import duration, strip, text

from tests.hyparflow.graphs import chain

REQUESTS: list[dict[str, Any]] = [
    {"schedule": "1f1b", "micro_batches": 8},
    {"schedule": "gems", "micro_batches": 4},
    {"schedule": "interleaved", "chunks": 2, "micro_batches": 6, "recompute": True, "replicas": 2},
]


@pytest.fixture(params=REQUESTS, ids=lambda request: request["schedule"])
def planned(request: pytest.FixtureRequest) -> Plan:
    return plan(chain(12, skip=4), partitions=3, batch_size=48, costs="estimated", **request.param)


def test_a_plan_comes_back_from_its_document(planned: Plan) -> None:
    assert Plan.from_json(planned.to_json()) == planned


def test_a_plan_comes_back_from_its_file(planned: Plan, tmp_path: Path) -> None:
    planned.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == planned


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "hyparflow.plan/1"}', '{"schema": "other/1"}'])
def test_what_is_not_a_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a"):
        Plan.from_json(text)


def test_every_crossing_tensor_is_printed_with_its_bytes(planned: Plan) -> None:
    shown = str(planned)
    size = planned.micro_batch_size * 128
    volume = f"{size} B" if size < 1024 else f"{size / 1024:.1f} KiB"
    assert all(f"{name} ({volume})" in shown for name, _ in planned.tensors.values())


def test_a_narrow_terminal_shows_every_number_whole(planned: Plan) -> None:
    shown = text(planned, width=80)

    assert all(duration(stage.forward_seconds) in shown for stage in planned.stages)
    assert all(word in shown for word in ("partition", "backward", "weights", "peak memory"))


def test_the_strips_show_every_forward_pass(planned: Plan) -> None:
    shown = "".join(bar for partition in range(3) for bar in strip(planned, partition, 500)).upper()

    assert all(shown.count(f"F{number}") + shown.count(f"X{number}") == len(planned.stages) for number in range(4))


@pytest.mark.parametrize("width", [10, 70, 700])
def test_a_strip_fills_its_width_and_leaves_the_bubble_free(planned: Plan, width: int) -> None:
    for partition, bubble in enumerate(planned.bubble):
        line = "".join(bars := strip(planned, partition, width))
        assert len(line) == width
        assert line.count(".") / width == pytest.approx(bubble, abs=(len(bars) + 1) / width)


def test_the_picture_has_one_bar_per_pass_that_takes_time(planned: Plan, tmp_path: Path) -> None:
    planned.draw(tmp_path / "plan.svg")
    drawn = ElementTree.parse(tmp_path / "plan.svg").getroot()
    kinds = [element.get("class", "").split() for element in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    bars = [kind for kind in kinds if "bar" in kind and "update" not in kind]
    passes = [span for spans in planned.timeline.partitions for span in spans if span.end > span.begin]
    assert len(bars) == len(passes)


def test_ranks_and_batch_follow_from_the_numbers(planned: Plan) -> None:
    assert planned.ranks == 3 * planned.replicas
    assert planned.batch_size == 48

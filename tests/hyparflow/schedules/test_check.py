"""The check that a schedule ends, and what it says of one that does not."""

from __future__ import annotations

import pytest
from hyparflow.errors import PlanError
from hyparflow.schedules import Action, check, schedule
from hypothesis import given, settings
from hypothesis import strategies as st


def test_two_stages_that_need_each_other_are_named() -> None:
    with pytest.raises(PlanError, match=r"never end.*stage 0 \(partition 0\).*stage 1 \(partition 1\).*stage 0"):
        check(schedule("gpipe", 2, 2), [(0, 1), (1, 0)])


def test_a_crossing_against_the_order_of_the_stages_stops_1f1b() -> None:
    with pytest.raises(PlanError, match="never end"):
        check(schedule("1f1b", 2, 4), [(1, 0)])


def test_and_does_not_stop_gpipe_where_no_stage_waits_for_its_own_result() -> None:
    check(schedule("gpipe", 2, 4), [(1, 0)])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_an_action_that_was_lost_is_named(data: st.DataObject) -> None:
    whole = schedule(data.draw(st.sampled_from(["gpipe", "1f1b", "gems"])), 3, 4)
    partition = data.draw(st.integers(0, 2))
    lost = data.draw(st.sampled_from(whole[partition]))
    rest = tuple(tuple(action for action in actions if action != lost) for actions in whole)
    with pytest.raises(PlanError, match=f"{lost} is missing on partition {partition}"):
        check(rest, [(0, 1), (1, 2)])


def test_an_action_on_a_wrong_partition_is_named() -> None:
    first, second = schedule("gpipe", 2, 1)
    with pytest.raises(PlanError, match="stands on partition 0, and the stage lives on partition 1"):
        check((first + second[:1], second[1:]), [(0, 1)])


def test_an_action_that_stands_twice_is_named() -> None:
    first, second = schedule("gpipe", 2, 1)
    with pytest.raises(PlanError, match="stands 2 times"):
        check((first[:1] + first, second), [(0, 1)])


def test_a_backward_before_its_own_forward_never_ends() -> None:
    actions = (Action("backward", 0, 0), Action("forward", 0, 0))
    with pytest.raises(PlanError, match=r"backward of micro-batch 0 on stage 0.*forward of micro-batch 0 on stage 0"):
        check((actions,), [])

"""Schedules: every pass once, in order, and no more in memory than each schedule promises."""

from __future__ import annotations

from collections import Counter

import pytest
from hyparflow.errors import PlanError
from hyparflow.schedules import Action, check, in_flight, owner, pipelines, schedule, stages_on
from hypothesis import given, settings
from hypothesis import strategies as st

FEW = settings(deadline=None, max_examples=40)

Numbers = tuple[str, int, int, int]
"""Name, partitions, micro-batches and chunks."""


@st.composite
def numbers(draw: st.DrawFn, *names: str) -> Numbers:
    """Those that fit together."""
    name = draw(st.sampled_from(names or ("gpipe", "1f1b", "interleaved", "gems")))
    partitions = draw(st.integers(2 if name == "interleaved" else 1, 7))
    micro_batches = draw(st.integers(1, 9)) * {"interleaved": partitions, "gems": 2}.get(name, 1)
    return name, partitions, micro_batches, draw(st.integers(2, 4)) if name == "interleaved" else 1


@FEW
@given(numbers())
def test_every_stage_computes_each_of_its_micro_batches_once_forward_and_once_backward(given_numbers: Numbers) -> None:
    name, partitions, micro_batches, chunks = given_numbers
    copies = pipelines(name)
    share = micro_batches // copies
    expected = Counter(
        Action(kind, stage, pipeline * share + index, pipeline)  # type: ignore[arg-type]
        for kind in ("forward", "backward")
        for stage in range(partitions * chunks)
        for pipeline in range(copies)
        for index in range(share)
    )
    assert Counter(action for actions in schedule(*given_numbers) for action in actions) == expected


@FEW
@given(numbers())
def test_a_partition_computes_its_own_stages_only(given_numbers: Numbers) -> None:
    _, partitions, _, chunks = given_numbers
    for partition, actions in enumerate(schedule(*given_numbers)):
        for action in actions:
            assert action.stage in stages_on(partition, action.pipeline, partitions, chunks)


@FEW
@given(numbers())
def test_gradients_of_a_stage_are_added_in_the_order_of_the_micro_batches(given_numbers: Numbers) -> None:
    for actions in schedule(*given_numbers):
        for stage, pipeline in {(action.stage, action.pipeline) for action in actions}:
            done = [
                action.micro_batch
                for action in actions
                if (action.kind, action.stage, action.pipeline) == ("backward", stage, pipeline)
            ]
            assert done == sorted(done)


@FEW
@given(numbers())
def test_no_schedule_stops_where_every_stage_needs_all_before_it(given_numbers: Numbers) -> None:
    _, partitions, _, chunks = given_numbers
    stages = range(partitions * chunks)
    check(schedule(*given_numbers), [(one, other) for one in stages for other in stages if one < other])


@FEW
@given(numbers("1f1b"))
def test_1f1b_holds_no_more_micro_batches_than_partitions_behind_it(given_numbers: Numbers) -> None:
    _, partitions, micro_batches, _ = given_numbers
    held = [in_flight(actions) for actions in schedule(*given_numbers)]
    assert held == [min(partitions - partition, micro_batches) for partition in range(partitions)]


@FEW
@given(numbers("gpipe"))
def test_gpipe_holds_all_micro_batches(given_numbers: Numbers) -> None:
    assert {in_flight(actions) for actions in schedule(*given_numbers)} == {given_numbers[2]}


@FEW
@given(numbers("gems"))
def test_gems_holds_one_micro_batch(given_numbers: Numbers) -> None:
    assert {in_flight(actions) for actions in schedule(*given_numbers)} == {1}


@FEW
@given(numbers("interleaved"))
def test_interleaving_holds_at_most_the_warm_up_and_one(given_numbers: Numbers) -> None:
    _, partitions, micro_batches, chunks = given_numbers
    for partition, actions in enumerate(schedule(*given_numbers)):
        warm_up = 2 * (partitions - partition - 1) + (chunks - 1) * partitions
        bound = micro_batches * chunks if micro_batches == partitions else min(warm_up + 1, micro_batches * chunks)
        assert in_flight(actions) <= bound


def test_1f1b_of_two_partitions() -> None:
    words = [
        " ".join(f"{action.kind[0].upper()}{action.micro_batch}" for action in own) for own in schedule("1f1b", 2, 3)
    ]
    assert words == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]


def test_gems_places_its_second_pipeline_the_other_way_round() -> None:
    assert [owner(0, 0, 4), owner(0, 1, 4), owner(3, 0, 4), owner(3, 1, 4)] == [0, 3, 3, 0]


def test_chunks_go_round_the_partitions() -> None:
    assert stages_on(1, 0, partitions=4, chunks=3) == (1, 5, 9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zigzag", 2, 4), "there is no schedule 'zigzag'"),
        (("1f1b", 0, 4), "partitions must be at least 1, not 0"),
        (("gems", 2, 3), "3 is odd"),
        (("interleaved", 2, 3, 2), "3 is not one of 2"),
        (("interleaved", 2, 4), "needs at least 2 chunks"),
        (("1f1b", 2, 4, 2), "only the interleaved schedule takes several chunks"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(arguments: tuple[str, int, int], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        schedule(*arguments)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        schedule("interleaved", 4, 3, 1)
    assert len(caught.value.findings) == 2

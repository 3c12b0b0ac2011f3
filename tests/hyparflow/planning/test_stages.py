"""Stages of an assignment: what crosses, straight from its producer to everybody who needs it."""

from __future__ import annotations

import pytest
from hyparflow.errors import PlanError
from hyparflow.graph.types import Graph
from hyparflow.planning.stages import crossings, stages_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hyparflow.graphs import chain, graph


def test_a_skip_goes_straight_to_every_stage_that_needs_it() -> None:
    stages = stages_of(graph([[0], [1], [2], [1, 3]]), (0, 1, 2, 3))
    assert stages[0].sends == {1: (1, 3)}


def test_the_input_of_the_model_is_received_where_it_is_used() -> None:
    assert [stage.receives for stage in stages_of(graph([[0], [0, 1]]), (0, 1))] == [(0,), (0, 1)]


def test_outputs_lie_where_they_are_made() -> None:
    assert [stage.outputs for stage in stages_of(graph([[0], [1], [1]]), (0, 0, 1))] == [(2,), (3,)]


def test_a_stage_without_a_node_is_refused() -> None:
    with pytest.raises(PlanError, match="stage 1 has no node"):
        stages_of(chain(3), (0, 2, 2))


@st.composite
def assigned(draw: st.DrawFn) -> tuple[Graph, tuple[int, ...]]:
    count = draw(st.integers(1, 12))
    taken = [sorted(draw(st.sets(st.integers(0, node), min_size=1, max_size=3))) for node in range(count)]
    cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=4))) if count > 1 else []
    return graph(taken), tuple(sum(node >= place for place in cuts) for node in range(count))


@settings(deadline=None, max_examples=50)
@given(assigned())
def test_what_is_sent_is_what_is_received(given_assignment: tuple[Graph, tuple[int, ...]]) -> None:
    model, assignment = given_assignment
    stages = stages_of(model, assignment)
    sent = {(tensor, to) for stage in stages for tensor, consumers in stage.sends.items() for to in consumers}
    received = {(tensor, stage.index) for stage in stages for tensor in stage.receives if tensor != 0}
    assert sent == received


@settings(deadline=None, max_examples=50)
@given(assigned())
def test_cuts_in_topological_order_cross_forwards_only(given_assignment: tuple[Graph, tuple[int, ...]]) -> None:
    assert all(producer < consumer for producer, consumer in crossings(stages_of(*given_assignment)))

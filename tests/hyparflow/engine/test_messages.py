"""The ways of tensors between stages."""

from __future__ import annotations

import numpy as np
import pytest
from hyparflow.engine.messages import host_dtype, links_of, most_in_flight
from hyparflow.graph.types import Graph, Node, Tensor
from hyparflow.planning.plan import Plan, Prediction
from hyparflow.planning.stages import stages_of
from hyparflow.schedules import schedule


def _chain_with_skip() -> Graph:
    """input -> node 0 -> node 1 -> node 2, and node 0's integers to node 2 as well."""

    def node(index: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Node:
        return Node(index, f"n{index}", "Dense", f"n{index}", inputs, outputs, (), 0, "")

    tensors = (
        Tensor(0, "in", (3,), "float32", None, (0,)),
        Tensor(1, "x", (4,), "float32", 0, (1, 2)),
        Tensor(2, "ids", (5,), "int32", 0, (2,)),
        Tensor(3, "y", (4,), "float32", 1, (2,)),
        Tensor(4, "z", (1,), "float32", 2, ()),
    )
    nodes = (node(0, (0,), (1, 2)), node(1, (1,), (3,)), node(2, (1, 2, 3), (4,)))
    return Graph("chain", nodes, tensors, (0,), (4,), "")


@pytest.fixture
def links() -> list[tuple[int, int, int, bool]]:
    """Tensor, producer, consumer, differentiable; each node is a stage."""
    graph = _chain_with_skip()
    stages = stages_of(graph, [0, 1, 2])
    plan = Plan("chain", "", 3, 1, 1, "1f1b", 2, 8, stages, Prediction(0.0, (), (), ()))
    return [(link.tensor, link.producer, link.consumer, link.differentiable) for link in links_of(plan, graph)]


def test_a_tensor_goes_straight_to_each_of_its_consumers(links: list[tuple[int, int, int, bool]]) -> None:
    assert [link[:3] for link in links if link[0] == 1] == [(1, 0, 1), (1, 0, 2)]


def test_integers_have_no_gradient_that_comes_back(links: list[tuple[int, int, int, bool]]) -> None:
    assert [link[0] for link in links if not link[3]] == [2]


def test_an_input_of_the_model_is_sent_by_nobody(links: list[tuple[int, int, int, bool]]) -> None:
    assert 0 not in {link[0] for link in links}


@pytest.mark.parametrize(("name", "most"), [("gpipe", 6), ("1f1b", 2), ("gems", 1)])
def test_buffers_follow_the_micro_batches_that_a_schedule_holds(name: str, most: int) -> None:
    assert most_in_flight(schedule(name, 2, 6)[0])[0, 0] == most


def test_dtypes_of_keras_have_numpys() -> None:
    assert host_dtype("float16") == np.dtype(np.float16)

"""Keras models as graphs of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hyparflow.conftest import Refused


@pytest.fixture(scope="module")
def tangled(ask: Callable[..., Any]) -> dict[str, Any]:
    return ask("graph", model="tangled")


@pytest.fixture(scope="module")
def nested(ask: Callable[..., Any]) -> dict[str, Any]:
    return ask("graph", model="nested")


def names(graph: dict[str, Any]) -> list[str]:
    return [node["name"] for node in graph["nodes"]]


def test_a_shared_layer_has_a_node_for_each_call(tangled: dict[str, Any]) -> None:
    assert {"shared", "shared:1"} <= set(names(tangled))


def test_nodes_of_a_shared_layer_have_the_same_variables(tangled: dict[str, Any]) -> None:
    shared = {tuple(node["variables"]) for node in tangled["nodes"] if node["layer"] == "shared"}
    assert shared == {("shared/kernel", "shared/bias")}


def test_operators_are_nodes(tangled: dict[str, Any]) -> None:
    assert "Multiply" in {node["kind"] for node in tangled["nodes"]}


def test_nested_models_are_opened_at_each_call(nested: dict[str, Any]) -> None:
    assert {"encoder/inner", "encoder/inner:1", "head/inner"} <= set(names(nested))


def test_variables_of_nested_models_have_names_of_their_own(nested: dict[str, Any]) -> None:
    variables = {node["name"]: tuple(node["variables"]) for node in nested["nodes"]}
    assert variables["encoder/inner"] != variables["head/inner"]


def test_names_are_unique(tangled: dict[str, Any], nested: dict[str, Any]) -> None:
    assert all(len(set(names(graph))) == len(graph["nodes"]) for graph in (tangled, nested))


def test_a_mask_is_a_tensor_that_the_consumer_reads(nested: dict[str, Any]) -> None:
    (mask,) = [tensor for tensor in nested["tensors"] if tensor["name"] == "embedding.mask"]
    assert [nested["nodes"][node]["kind"] for node in mask["consumers"]] == ["LSTM"]


def test_attention_removes_the_mask_of_what_it_reads(ask: Callable[..., Any]) -> None:
    graph = ask("graph", model="attending")
    consumers = {t["name"]: [graph["nodes"][node]["name"] for node in t["consumers"]] for t in graph["tensors"]}
    assert consumers["embedding.mask"] == ["attention_0"]
    assert consumers["attention_0.mask"] == ["residual_0"]
    assert consumers["residual_0.mask"] == []


def test_a_mask_of_a_layer_inside_a_layer_is_a_tensor_too(ask: Callable[..., Any]) -> None:
    graph = ask("graph", model="masked_inside")
    (mask,) = [tensor for tensor in graph["tensors"] if tensor["name"] == "tokens.mask"]
    assert [graph["nodes"][node]["kind"] for node in mask["consumers"]] == ["Dense"]


def test_nodes_come_after_what_they_need(tangled: dict[str, Any]) -> None:
    producers = {tensor["index"]: tensor["producer"] for tensor in tangled["tensors"]}
    needed = [(node["index"], producers[t]) for node in tangled["nodes"] for t in node["inputs"]]
    assert all(producer is None or producer < node for node, producer in needed)


def test_fingerprints_report_structure_and_not_weights(ask: Callable[..., Any]) -> None:
    first, second = ask("fingerprints", model="tangled", seeds=[1, 2])
    assert first == second


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("subclassed", "model 'opaque' .* has a call\\(\\) of its own"),
        ("unbuilt", "Sequential model 'unbuilt' is not built"),
        ("dropped_before_attention", "'residual_0' has other masks in training than in evaluation"),
        ("masked_output", "output 'embedding' loses its mask"),
        ("open_shape", "'sequence' has the shape .*only the batch axis may be open"),
    ],
)
def test_models_that_cannot_be_cut_are_named_with_the_reason(ask: Callable[..., Any], model: str, reason: str) -> None:
    with pytest.raises(Refused, match=f"UnsupportedModel: .*{reason}"):
        ask("refused", model=model)

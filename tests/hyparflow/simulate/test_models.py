"""Well-known models without a framework, against what Keras counts of them."""

from __future__ import annotations

import pytest
from hyparflow.errors import PlanError
from hyparflow.simulate.models import model


@pytest.mark.parametrize(
    ("name", "nodes", "parameters"),
    [
        # Nodes and trainable parameters of the Keras models.
        ("resnet20v1", 71, 273_066),
        ("resnet1001v2", 3339, 30_347_658),
        ("vgg16", 24, 15_245_130),
    ],
)
def test_size(name: str, nodes: int, parameters: int) -> None:
    made = model(name)
    assert made is not None
    assert (len(made.nodes), sum(node.parameters for node in made.nodes)) == (nodes, parameters)


def test_equal_layers_have_equal_signatures() -> None:
    first, last = model("resnet20v1"), model("resnet56v1")
    assert first is not None
    assert last is not None
    assert {node.signature for node in first.nodes} == {node.signature for node in last.nodes}


@pytest.mark.parametrize("name", ["resnet21v1", "resnet30v2", "vgg12"])
def test_depths_that_there_are_not(name: str) -> None:
    with pytest.raises(PlanError, match=r"n\+2 layers|of depth"):
        model(name)


def test_other_names_are_not_models() -> None:
    assert model("lenet") is None

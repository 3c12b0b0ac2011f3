"""Stages on TensorFlow, run in one process, against sequential training in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tiers import deep

pytestmark = pytest.mark.exact

#: What rounding alone may do to a variable over a few steps.
ROUNDING = 1e-12

CASES: dict[str, dict[str, Any]] = {
    "tangled on 3 stages, recomputed": {"model": "tangled", "stages": 3, "recompute": True, "schedule_name": "gpipe"},
    "tangled on 2 partitions with 2 chunks": {
        "model": "tangled",
        "stages": 4,
        "partitions": 2,
        "schedule_name": "interleaved",
    },
    "tangled on 2 stages and 2 replicas": {"model": "tangled", "stages": 2, "replicas": 2, "micro_batches": 1},
    "tangled on 2 stages in both directions": {"model": "tangled", "stages": 2, "schedule_name": "gems", "steps": 1},
    "resnet20 on 4 stages, recomputed": {"model": "resnet20", "stages": 4, "recompute": True},
    "masks on 3 stages": {"model": "nested", "stages": 3},
    "regularizers on 2 stages": {"model": "penalised", "stages": 2},
}


#: Whose parts the others have too: large, or of one layer.
NIGHTLY = (
    *("resnet20 on 4 stages, recomputed", "regularizers on 2 stages", "masks on 3 stages"),
    "tangled on 2 stages in both directions",
)


@pytest.fixture(scope="module", params=[deep(case) if case in NIGHTLY else case for case in CASES])
def differences(request: pytest.FixtureRequest, ask: Callable[..., Any]) -> dict[str, float]:
    return ask("equality", **({"micro_batches": 2, "steps": 2} | CASES[request.param]))


def test_variables_are_those_of_sequential_training(differences: dict[str, float]) -> None:
    assert differences["variables"] <= ROUNDING


def test_losses_are_those_of_sequential_training(differences: dict[str, float]) -> None:
    assert differences["losses"] <= ROUNDING


LAYER = st.tuples(
    st.sampled_from(["dense", "shared", "dropout", "norm", "half", "add", "times"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], list[int]]:
    """A random graph, and for each of its nodes a stage not before those that it needs."""
    layers = draw(st.lists(LAYER, min_size=3, max_size=8))
    cuts = sorted(draw(st.lists(st.integers(1, len(layers) - 1), min_size=1, max_size=2, unique=True)))
    return layers, [sum(node >= cut for cut in cuts) for node in range(len(layers))]


@pytest.mark.deep
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@example(case=([("half", 0, 0)] * 3, [0, 1, 1]), recompute=False)  # no variable at all
@given(case=assignments(), recompute=st.booleans())
def test_any_graph_on_any_stages_trains_as_the_whole(
    ask: Callable[..., Any], case: tuple[list[Any], list[int]], recompute: bool
) -> None:
    layers, assignment = case
    assert ask("random_graph", layers=layers, assignment=assignment, recompute=recompute) <= ROUNDING


# Half precision rounds where kernels are fused, which they are in a compiled stage and not in an eager one.
@pytest.mark.parametrize(
    ("policy", "crossing", "rounding"), [("mixed_float16", "float16", 1e-3), ("mixed_bfloat16", "bfloat16", 1e-2)]
)
def test_mixed_precision_is_that_of_sequential_training(
    ask: Callable[..., Any], policy: str, crossing: str, rounding: float
) -> None:
    seen = ask("mixed", policy=policy)
    assert (seen["crossing"], seen["difference"] < rounding) == (crossing, True), seen


@pytest.mark.parametrize(
    ("dtype", "kernel", "rounding"), [("float32", "FusedBatchNormV3", 1e-5), ("float64", "SquaredDifference", ROUNDING)]
)
def test_images_are_normalised_as_keras_does_it_by_the_kernel_for_their_dtype(
    ask: Callable[..., Any], dtype: str, kernel: str, rounding: float
) -> None:
    seen = ask("normalised", policy=dtype)
    assert (seen["kernels"], seen["difference"] < rounding) == ([kernel], True), seen


def test_outputs_without_training_are_those_of_the_model(ask: Callable[..., Any]) -> None:
    assert ask("evaluated", model="tangled", stages=3) <= ROUNDING


@pytest.fixture(scope="module")
def lazy(ask: Callable[..., Any]) -> dict[str, Any]:
    return ask("deferred", model="tangled", stage=1, stages=3)


def test_a_deferred_model_has_no_values(lazy: dict[str, Any]) -> None:
    assert lazy["before"] == 0


def test_a_stage_initialises_only_its_own_variables(lazy: dict[str, Any]) -> None:
    assert lazy["only its own"]


def test_deferred_values_are_those_of_an_eager_build(lazy: dict[str, Any]) -> None:
    assert lazy["difference"] == 0


def test_deferred_moving_statistics_are_those_of_the_whole_batch(ask: Callable[..., Any]) -> None:
    seen = ask("moving_statistics", mode="deferred", micro_batches=3, replicas=2)
    rows = np.array(seen["rows"])
    assert np.allclose([seen["mean"], seen["variance"]], [0.25 * rows.mean(0), 0.75 + 0.25 * rows.var(0)])


def test_synchronised_moving_statistics_are_the_mean_over_the_replicas(ask: Callable[..., Any]) -> None:
    seen = ask("moving_statistics", mode="synchronised", micro_batches=1, replicas=2)
    halves = np.split(np.array(seen["rows"]), 2)
    assert np.allclose(seen["mean"], 0.25 * np.mean([half.mean(0) for half in halves], 0))

"""Numbers beside plain Keras on the same batches, the last of which is smaller; float64, 2 ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import chosen
from tests.workloads import ranks

pytestmark = [pytest.mark.deep, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


def deep(*cases: str) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.deep) for case in cases]


each_loss = pytest.mark.parametrize("loss", ["Circle", *deep("Dice", "Tversky")])


@pytest.fixture(scope="module")
def found(
    stack_prefix: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Case -> differences by layout, or what each rank raised; all cases in one launch."""
    root, path = tmp_path_factory.mktemp("numbers"), f"{LIBRARY}:{PROGRAMS}"
    refused = {f"{loss}, refused, {layout}" for loss in chosen(request, "loss") for layout in chosen(request, "layout")}
    words = (PROGRAMS / "as_keras.py", root, *chosen(request, "case"), *chosen(request, "loss"), *refused)
    done = ranks.run(stack_prefix("tensorflow"), 2, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize(
    "case",
    ["masks, weights of words", "an ignored class", *deep("masks", "masks, weights of samples", "masks, a sum")],
)
def test_masked_losses_and_metrics_are_those_of_the_whole_batch(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@pytest.mark.parametrize("case", ["masks, one micro-batch"])
def test_one_micro_batch_has_a_mask_from_any_layer(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10


@pytest.mark.parametrize("case", ["weights", "mean over weights", *deep("sum", "Dice of samples")])
def test_weighted_and_summed_losses_are_those_of_the_whole_batch(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@pytest.mark.parametrize("case", ["two outputs"])
def test_the_losses_of_several_outputs_are_means_over_batches(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@pytest.mark.parametrize("case", ["an embedding"])
def test_the_gradients_of_a_row_of_an_embedding_are_added_up(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@pytest.mark.parametrize("case", ["activity"])
def test_activity_regularizers_count_samples_only(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@pytest.mark.parametrize("case", ["softmax", *deep("sigmoid")])
def test_metrics_take_the_logits_that_keras_takes(found: Any, case: str) -> None:
    assert max(found[case].values()) <= 1e-10, found[case]


@each_loss
def test_a_loss_of_the_batch_as_a_whole_equals_keras_in_one_part(found: Any, loss: str) -> None:
    assert max(found[loss].values()) <= 1e-10, found[loss]


@pytest.mark.parametrize("layout", ["partitions", "replicas"])
@each_loss
def test_a_loss_of_the_batch_as_a_whole_is_refused_in_several_parts(found: Any, loss: str, layout: str) -> None:
    (refused,) = set(found[f"{loss}, refused, {layout}"])

    assert refused.startswith(f"RequestError: loss '{loss.lower()}' is of the batch as a whole")

"""What cannot be trained in parts is refused before training, alike on all ranks, with the layer, reason and cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.deep

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def found(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Case -> what each of 2 ranks raised."""
    root, path = tmp_path_factory.mktemp("refusals"), f"{LIBRARY}:{PROGRAMS}"
    words = (PROGRAMS / "refusing.py", root)
    done = ranks.run(stack_prefix("tensorflow"), 2, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize(
    ("case", "error", "reason", "cure"),
    [
        ("SpectralNormalization", "UnsupportedModel", "'bounded' assigns the weights", "keras.constraints.MaxNorm"),
        ("stateful", "UnsupportedModel", "LSTM 'remembering' is stateful", "say stateful=False"),
        ("nowhere to cut", "PlanError", "BatchNormalization in 'norm' belong on one stage", "take fewer partitions"),
        (
            "a loss of two outputs",
            "UnsupportedModel",
            "'apart' is of the outputs one, other together",
            "a loss of its own",
        ),
        (
            "a loss without a reduction",
            "UnsupportedModel",
            "'mean_squared_error' has no reduction",
            "reduction='sum_over_batch_size'",
        ),
        *(
            (
                case,
                "UnsupportedModel",
                "'mine/calls' is assigned by its layer in the forward pass",
                "use replicas=1 and micro_batches=1",
            )
            for case in ("a state", "a state in an evaluation")
        ),
        (
            "compiled by a callback",
            "RequestError",
            "a callback has compiled model 'truth' again, or changed its layers, and fit() goes on with epoch 2",
            "let it end before (model.stop_training = True), and call it again",
        ),
        ("a built optimizer", "RequestError", "was built for other variables", "compile() the model with a new"),
    ],
)
def test_a_refusal_names_layer_reason_and_cure_alike_on_all_ranks(
    found: Any, case: str, error: str, reason: str, cure: str
) -> None:
    (refused,) = set(found[case])

    assert refused.startswith(f"{error}: ")
    assert reason in refused
    assert cure in refused


def test_a_mistake_in_a_users_layer_is_raised_on_all_ranks(found: Any) -> None:
    every = found["a mistake in a layer"]

    assert [each.partition(":")[0] for each in every] == ["ValueError", "ValueError"]
    assert ["a mistake in my layer" in each and "Failing.call()" in each for each in every] == [True, True]


@pytest.mark.parametrize("costs", ["estimated", "measured"])
def test_a_shared_batch_normalization_stays_on_one_stage(found: Any, costs: str) -> None:
    assert found["shared"][costs] <= 1e-10


def test_a_layer_that_counts_its_calls_counts_as_in_one_process(found: Any) -> None:
    assert found["a state in one part"] <= 1e-10

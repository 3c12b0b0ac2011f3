"""A model's own calls under a strategy, 2 partitions, beside plain Keras in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = [pytest.mark.real, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def run(stack_prefix: Callable[[str], Path]) -> Callable[..., Any]:
    """A program on 2 ranks."""

    def of(program: str, *words: Path | str) -> Any:
        path = f"{LIBRARY}:{PROGRAMS}"
        words = (PROGRAMS / program, *words)
        return ranks.run(
            stack_prefix("tensorflow"), 2, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1"
        )

    return of


@pytest.fixture(scope="module")
def differences(run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Cases -> the largest difference of each from plain Keras."""

    def of(*names: str) -> Any:
        root = tmp_path_factory.mktemp("own_calls")
        done = run("own_calls.py", root, *names)
        assert done.status == 0, done.stdout + done.stderr
        return json.loads((root / "found.json").read_text())

    return of


@pytest.fixture(scope="module")
def few(differences: Callable[..., Any]) -> Any:
    """The short ones, in one launch."""
    return differences("read again", "smaller batches", "exported", "kept inputs")


@pytest.fixture(scope="module")
def found(differences: Callable[..., Any]) -> Any:
    """The others, in one launch."""
    return differences("fit", "batches", "recompiled", "loaded", "refused")


@pytest.mark.deep
@pytest.mark.parametrize(
    "case",
    [
        "plain", "validation_split", "validation_data", "initial_epoch", "steps_per_epoch", "callbacks",
        "sample_weight", "another batch size", "a user's callback", "history of the model",
    ],
)  # fmt: skip
def test_fit_is_keras_own(found: Any, case: str) -> None:
    assert found["fit"][case] <= 1e-10


@pytest.mark.deep
@pytest.mark.parametrize(
    "case",
    [
        "train_on_batch", "train_on_batch with weights", "test_on_batch", "predict_on_batch", "evaluate",
        "evaluate, return_dict", "predict", "get_weights",
    ],
)  # fmt: skip
def test_calls_with_one_batch_and_without_training_are_keras_own(found: Any, case: str) -> None:
    assert found["batches"][case] <= 1e-10


@pytest.mark.deep
def test_freezing_and_compiling_again_and_another_strategy_are_as_in_keras(found: Any) -> None:
    assert found["recompiled"] <= 1e-10


@pytest.mark.deep
@pytest.mark.parametrize("where", ["in", "after"])
def test_a_loaded_model_goes_on_with_its_optimizer(found: Any, where: str) -> None:
    assert found["loaded"][f"load_model {where} the scope"] <= 1e-10


@pytest.mark.deep
@pytest.mark.parametrize("who", ["all", "one"])
def test_a_saved_model_has_all_of_its_optimizer(found: Any, who: str) -> None:
    assert found["loaded"][f"saved by {who}"] <= 1e-10


@pytest.mark.deep
def test_a_rank_holds_its_part_of_a_loaded_model_at_the_end(found: Any) -> None:
    assert sum(found["loaded"]["held"]) == pytest.approx(1.0)
    assert max(found["loaded"]["held"]) < 0.6


@pytest.mark.deep
@pytest.mark.parametrize(("model", "step"), [("Steps", "train_step"), ("Tests", "test_step")])
def test_a_step_of_ones_own_is_refused_by_name(found: Any, model: str, step: str) -> None:
    (refused,) = set(found["refused"][model])

    assert refused.startswith(f"UnsupportedModel: model 'own' ({model}) overrides {step}()")


@pytest.mark.deep
def test_a_typo_in_an_argument_is_a_type_error(found: Any) -> None:
    assert set(found["refused"]["typo"]) == {"TypeError: Model.fit() got an unexpected keyword argument 'epoch'"}


def test_an_unmodified_keras_program_runs_on_two_ranks(run: Callable[..., Any]) -> None:
    done = run("without_network.py", PROGRAMS / "mnist_convnet.py")
    assert done.status == 0, done.stdout + done.stderr

    assert done.stdout.count("Epoch 15/15") == 1  # rank 0's progress bar
    accuracy = re.findall(r"^Test accuracy: (.*)$", done.stdout, re.MULTILINE)
    assert len(accuracy) == 2
    assert accuracy[0] == accuracy[1]
    assert float(accuracy[0]) > 0.9


def test_two_lines_make_kerass_example_run_partitioned() -> None:
    lines = (PROGRAMS / "mnist_convnet.py").read_text().splitlines()

    assert sum("hyparflow" in line for line in lines) == 2


@pytest.mark.deep
def test_weights_that_are_loaded_in_a_training_bring_the_optimizers_state(few: Any) -> None:
    assert few["read again"] <= 1e-10


@pytest.mark.deep
def test_a_loop_of_train_on_batch_takes_smaller_batches(few: Any) -> None:
    assert few["smaller batches"] <= 1e-10


def test_a_model_in_parts_is_exported_whole_and_trains_on(few: Any) -> None:
    assert sorted(few["exported"]) == ["after 1 trainings", "after 2 trainings"]
    assert max(few["exported"].values()) < 1e-6


def test_a_variable_keeps_inputs_that_change_afterwards(few: Any) -> None:
    assert few["kept inputs"] == 0

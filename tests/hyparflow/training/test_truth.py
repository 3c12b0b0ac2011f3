"""Weights are what was loaded or trained, on every rank, as in plain Keras: one process, 2 partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = [pytest.mark.deep, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
MODELS = Path(__file__).parents[1] / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def directory(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """What a program writes on 2 ranks."""

    def of(program: str, *more: Path, number: int = 2) -> Path:
        root, path = tmp_path_factory.mktemp("truth"), f"{LIBRARY}:{PROGRAMS}:{MODELS}"
        words = (PROGRAMS / program, root, *more)
        done = ranks.run(
            stack_prefix("tensorflow"), number, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1"
        )
        assert done.status == 0, done.stdout + done.stderr
        return root

    return of


@pytest.fixture(scope="module")
def found(directory: Callable[..., Path]) -> Any:
    """Case -> what came of it, all cases in one launch: mostly the largest difference from plain Keras."""
    return json.loads((directory("truth.py") / "found.json").read_text())


@pytest.mark.parametrize("where", ["in the scope", "after the scope", "after a prediction"])
@pytest.mark.parametrize("call", ["load_weights", "set_weights"])
def test_loaded_weights_are_used(found: Any, call: str, where: str) -> None:
    assert max(found[f"{call} {where}"]) <= 1e-10


def test_other_weights_predict_otherwise(found: Any) -> None:
    assert found["a prediction before"] > 0.1


def test_weights_loaded_before_the_scope_are_used(found: Any) -> None:
    assert max(found["set_weights before the scope"]) <= 1e-10


def test_what_normalization_adapts_to_in_the_scope_is_kept(found: Any) -> None:
    assert max(found["adapt in the scope"]) <= 1e-10


@pytest.mark.parametrize("call", ["evaluate", "predict", "get_weights", "save", "save_weights"])
def test_keras_calls_on_a_model_that_lies_in_parts_have_all_of_it(found: Any, call: str) -> None:
    assert found["in parts"][call] <= 1e-10


def test_ranks_in_different_calls_are_told_so(found: Any) -> None:
    assert set(found["different calls"]) == {
        "RequestError: rank 0 calls evaluate() and rank 1 get_weights(): all ranks must call the same"
    }


@pytest.mark.parametrize("call", ["call", "a layer's get_weights", "a variable"])
def test_reading_a_trained_model_that_lies_in_parts_is_an_error_on_every_rank(found: Any, call: str) -> None:
    assert ["RequestError" in each and "hyparflow.gather(model)" in each for each in found["reads"][call]] == [True] * 2


@pytest.mark.parametrize("call", ["evaluate", "predict", "get_weights"])
def test_a_gathered_model_is_the_trained_one(found: Any, call: str) -> None:
    assert found["gathered"][call] <= 1e-10


def test_a_model_that_is_trained_further_is_in_parts_again(found: Any) -> None:
    assert all("hyparflow.gather(model)" in each for each in found["after another fit"])


def test_gathered_again_it_has_what_was_learned_since(found: Any) -> None:
    assert found["gathered again"] <= 1e-10


def test_the_saved_model_is_the_trained_one(found: Any) -> None:
    assert found["saved"] <= 1e-10


@pytest.mark.parametrize("model", ["attending", "masked_inside"])
def test_masks_are_those_of_a_run_of_keras(found: Any, model: str) -> None:
    assert max(found["masked"][model]) <= 1e-10


@pytest.mark.parametrize("costs", ["estimated", "measured"])
def test_a_model_compiled_again_trains_as_it_was_compiled_last(found: Any, costs: str) -> None:
    assert max(found[f"recompiled, {costs}"]) <= 1e-10


@pytest.mark.parametrize("begins", ["both", "side"])
def test_what_no_loss_depends_on_is_left_alone_by_weight_decay(found: Any, begins: str) -> None:
    assert max(found["without gradients"][begins]) <= 1e-10


@pytest.mark.parametrize("shape", ["(n, 1)", "(n,)"])
def test_metrics_that_compare_the_samples_of_a_batch_are_keras(found: Any, shape: str) -> None:
    assert max(found["metrics of batches"][shape].values()) <= 1e-6, found["metrics of batches"][shape]


def test_frozen_bfloat16_weights_train_restart_and_gather(found: Any) -> None:
    assert found["frozen bfloat16"] <= 1e-6


def test_checkpoints_of_another_program_stay_under_fit_and_restart(found: Any) -> None:
    assert found["others"]


def test_another_strategy_goes_on_with_a_trained_model(found: Any) -> None:
    assert found["another strategy"] <= 1e-10


def test_the_how_tos_recipe_fine_tunes_mobilenet_as_in_one_process(
    directory: Callable[..., Path], tmp_path: Path
) -> None:
    page = (ranks.REPOSITORY / "docs" / "how-to" / "train-larger-models.md").read_text()
    (tmp_path / "tune.py").write_text(re.findall(r"```python\n(# tune.py\n.*?)```", page, re.DOTALL)[0])
    far = json.loads((directory("fine_tuning.py", tmp_path / "tune.py") / "tuning.json").read_text())

    assert max(far.values()) <= 1e-10


HOW_TO, README = "docs/how-to/train-larger-models.md", "libs/hyparflow/README.md"
#: The first lines of programs, by page, and what these programs leave; they run on 4 ranks.
PAGES = {
    "how-to": ([(HOW_TO, "# train.py")], ["checkpoints", "logs", "timeline.json", "trained.keras"]),
    "README": ([(README, "# train.py: ")], ["trained.keras"]),
    "gathered": ([(README, "# train.py: "), (HOW_TO, "hyparflow.gather(model)")], ["trained.keras", "tuned.keras"]),
}


@pytest.mark.parametrize("program", PAGES)
def test_programs_of_pages_train_as_plain_keras(directory: Callable[..., Path], tmp_path: Path, program: str) -> None:
    parts, left = PAGES[program]
    files = [tmp_path / f"{number}.py" for number in range(len(parts))]
    for file, (page, first) in zip(files, parts, strict=True):
        text = (ranks.REPOSITORY / page).read_text()
        (block,) = re.findall(rf"```python\n({re.escape(first)}.*?)```", text, re.DOTALL)
        file.write_text(block)
    found = json.loads((directory("page.py", *files, number=4) / "page.json").read_text())

    assert found["difference"] <= 1e-10
    assert found["learned"] > 0.01
    assert found["left"] == left


def test_a_rank_holds_its_part_of_a_loaded_model_and_optimizer_at_the_end(directory: Callable[..., Path]) -> None:
    every = json.loads((directory("holding.py") / "holding.json").read_text())

    for held in every:
        assert held["loaded"] > 0.75 * held["whole"]  # all of it, until the first fit shares it out
        assert max(held["fitted"], held["saved"]) < 0.75 * held["whole"]

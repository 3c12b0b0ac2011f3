"""fit, evaluate and predict on 4 ranks: Keras' numbers, any data, any partitioning after a break, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.exact

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def directory(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program wrote: all cases in one launch."""
    root = tmp_path_factory.mktemp("training")
    words = (PROGRAMS / "cases.py", root / "found.json", root)
    path = f"{LIBRARY}:{PROGRAMS}"
    done = ranks.run(stack_prefix("tensorflow"), 4, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return root


@pytest.fixture(scope="module")
def found(directory: Path) -> Any:
    """Case -> what came of it."""
    return json.loads((directory / "found.json").read_text())


@pytest.fixture(params=["1x1", "2x1", "2x2"])
def world(request: pytest.FixtureRequest) -> Any:
    """Partitions x replicas that go on with what 4 partitions began."""
    return request.param


@pytest.fixture(params=[5, 8])
def broken(found: Any, world: str, request: pytest.FixtureRequest) -> Any:
    """A training that went on from that step."""
    return found[f"break-{world}-{request.param}"]


def test_a_training_goes_on_with_other_partitions_and_replicas_to_the_same_weights(broken: Any) -> None:
    assert broken["steps"] == [10, 10]
    assert broken["far"] <= 1e-12


def test_the_history_of_a_training_with_a_break_is_whole(broken: Any, found: Any) -> None:
    straight = {name: pytest.approx(values, rel=1e-9) for name, values in found["straight"].items()}

    assert straight == broken["history"]


def test_micro_batches_stay_as_small_as_they_were_before_the_break(broken: Any, world: str) -> None:
    assert broken["micro_batches"] == (2 if world == "2x2" else 4)


@pytest.mark.parametrize("kind", ["dict", "PyDataset", "tf.data", "generator"])
def test_the_same_samples_train_alike_however_they_come(found: Any, kind: str) -> None:
    assert found["data"][kind] == found["data"]["arrays"]


def test_the_history_is_the_same_on_all_ranks(found: Any) -> None:
    assert found["histories-equal"]


def test_evaluate_gives_keras_numbers_for_samples_that_fill_no_batch(found: Any) -> None:
    evaluated = found["evaluate"]

    assert evaluated["found"] == {name: pytest.approx(value, rel=1e-9) for name, value in evaluated["expected"].items()}


def test_predict_gives_keras_predictions(found: Any) -> None:
    assert found["predict"] <= 1e-12


def test_a_saved_model_has_its_optimizer_as_it_was_compiled(found: Any) -> None:
    assert found["clip"] == 1.0


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        ("not compiled", "RequestError", "not compiled"),
        ("too few nodes", "PlanError", "too few for 4 partitions"),
        ("too few ranks", "WorldError", "4 partitions x 2 replicas need 8 ranks, and this world has 4"),
        ("parts of images", "PlanError", "divides images into 2 parts"),
        ("batch does not divide", "PlanError", "does not divide"),
        ("another shape", "DataError", "input 'u' of the model is (None, 6)"),
        ("lengths differ", "DataError", "equally many samples"),
        ("ranks differ", "DataError", "do not read the same data"),
        ("callback", "RequestError", "BackupAndRestore"),
        ("checkpoints in the way", "CheckpointError", "restart=True"),
        ("two kinds of weights", "DataError", "cannot be given together"),
        ("class_weight for two outputs", "DataError", "class_weight is for models with one output"),
        ("a stage that one rank cannot run", "RequestError", "this rank has no such operation"),
        ("own data on a rank", "DataError", "seed what is random"),
    ],
)
def test_a_wrong_request_is_refused_alike_on_all_ranks(found: Any, request_: str, error: str, text: str) -> None:
    refused = found["refusals"][request_]

    assert (refused["raised"][0], text in refused["raised"][1], refused["alike"]) == (error, True, True), refused


def test_a_refined_plan_rests_on_what_each_rank_saw_of_its_own_stages(found: Any) -> None:
    own = [["first", "second"], ["a", "b"]]

    assert found["refinement"] == {"costs": "refined", "alike": True, "made": [*own, *own]}


def test_one_micro_batch_has_keras_own_history_with_its_callbacks(found: Any) -> None:
    beside = found["keras"]
    expected = {name: pytest.approx(values, rel=1e-6) for name, values in beside["expected"].items()}

    assert (beside["found"], beside["epochs"][0]) == (expected, beside["epochs"][1])


@pytest.mark.parametrize("weights", ["plain", "class_weight", "sample_weight"])
def test_a_sequential_model_has_keras_own_history(found: Any, weights: str) -> None:
    history, expected = found["sequential"][weights]

    assert history == {name: pytest.approx(values, rel=1e-9) for name, values in expected.items()}


def test_weights_change_what_is_learned(found: Any) -> None:
    losses = [tuple(history["loss"]) for history, _ in found["sequential"].values()]

    assert len(set(losses)) == 3


def test_callbacks_leave_all_ranks_with_one_history(found: Any) -> None:
    assert found["keras"]["alike"]


def test_only_rank_0_writes_a_log(found: Any) -> None:
    assert found["keras"]["logs"] == [True, False, False, False]


def test_model_checkpoints_are_keras_files(found: Any) -> None:
    assert found["keras"]["checkpoints"][0] == "best-1.keras"


def test_the_trace_has_measured_and_predicted_passes_of_every_rank(found: Any, directory: Path) -> None:
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]

    passes = {(event["pid"], event["cat"]) for event in events if event["name"].startswith("forward ")}
    assert passes == {(rank, lane) for rank in range(4) for lane in ("compute", "predicted")}


def test_tensorboard_scalars_are_written(found: Any, directory: Path) -> None:
    (events,) = (directory / "board").glob("events.out.tfevents.*")

    assert all(name in events.read_bytes() for name in (b"pipeline/step_seconds/predicted", b"pipeline/bubble/rank_3"))

"""Training over real MPI gives the numbers of sequential training that accumulates over the same micro-batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import chosen
from tests.workloads import ranks

pytestmark = [pytest.mark.deep, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"

#: model, partitions, replicas, schedule, chunks, recompute
_ALWAYS = [
    ("residual", 2, 2, "1f1b", 1, True),
    ("branched", 2, 1, "gems", 1, True),
    ("branched", 3, 1, "gpipe", 1, False),
    ("branched", 4, 1, "1f1b", 1, True),
    ("branched", 2, 2, "interleaved", 2, True),
]
_SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("gems", 1)]
_EVERY = [
    (model, *world, *schedule, recompute)
    for model, world, schedule, recompute in product(
        ("residual", "branched"), ((2, 1), (3, 1), (4, 1), (2, 2)), _SCHEDULES, (False, True)
    )
]


def _case(*values: Any) -> dict[str, Any]:
    keys = ("model", "partitions", "replicas", "schedule", "chunks", "recompute")
    case = dict(zip(keys, values, strict=True))
    again = "-recompute" if case["recompute"] else ""
    name = f"{case['model']}-{case['partitions']}x{case['replicas']}-{case['schedule']}{again}"
    return {"name": name, **case, "predicts": case["model"] == "branched"}  # compiles every stage once more


CASES = [_case(*each) for each in _ALWAYS]
REST = [case for case in (_case(*each) for each in _EVERY) if case not in CASES]


def _world(case: dict[str, Any]) -> tuple[str, int, int]:
    return case["model"], case["partitions"], case["replicas"]


def _cases(cases: list[dict[str, Any]]) -> Any:
    """Tests of each case."""
    return pytest.mark.parametrize("name", [case["name"] for case in cases])


@pytest.fixture(scope="module")
def launch(
    stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str, Any], Any]:
    """Runs one of the programs on so many ranks with these cases; its document."""

    def launch(size: int, program: str, cases: Any) -> Any:
        directory = tmp_path_factory.mktemp("engine")
        (directory / "cases.json").write_text(json.dumps(cases))
        words = (PROGRAMS / program, directory / "found.json", directory / "cases.json")
        environment = {"PYTHONPATH": f"{LIBRARY}:{PROGRAMS}", "TF_NUM_INTRAOP_THREADS": "1"}
        done = ranks.run(stack_prefix("tensorflow"), size, *words, timeout=600, **environment)
        assert done.status == 0, done.stdout + done.stderr
        return json.loads((directory / "found.json").read_text())

    return launch


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, launch: Callable[[int, str, Any], Any]) -> Callable[[str], Any]:
    """How far a case ended from sequential training; all cases of a model and a world are trained in one launch."""
    names = chosen(request, "name")
    cases = {case["name"]: case for case in CASES + REST if case["name"] in names}

    @cache
    def trained(model: str, partitions: int, replicas: int) -> Any:
        together = [case for case in cases.values() if _world(case) == (model, partitions, replicas)]
        return launch(partitions * replicas, "equality.py", together)

    return lambda name: trained(*_world(cases[name]))[name]


@pytest.fixture(scope="module")
def overflow(launch: Callable[[int, str, Any], Any]) -> Any:
    return launch(2, "overflow.py", None)


@_cases(CASES)
def test_ten_steps_end_where_sequential_training_ends(found: Callable[[str], Any], name: str) -> None:
    assert found(name)["variables"] <= 1e-12


@_cases(CASES)
def test_the_losses_of_the_ranks_add_up_to_the_loss_of_sequential_training(
    found: Callable[[str], Any], name: str
) -> None:
    assert found(name)["loss"] <= 1e-12


@_cases([case for case in CASES if case["predicts"]])
def test_what_is_predicted_then_is_what_the_sequentially_trained_model_predicts(
    found: Callable[[str], Any], name: str
) -> None:
    assert found(name)["predictions"] <= 1e-12


def test_no_rank_updates_when_one_partitions_gradients_are_not_finite(overflow: Any) -> None:
    assert overflow["updated"] == [False, False]
    assert overflow["unchanged"] == [True, True]


def test_every_rank_halves_its_loss_scale_then(overflow: Any) -> None:
    assert overflow["scale"] == [2.0**119, 2.0**119]


def test_all_ranks_update_once_the_loss_scale_fits(overflow: Any) -> None:
    assert overflow["updated_then"] == [True, True]


@_cases(REST)
def test_every_other_plan_ends_there_too(found: Callable[[str], Any], name: str) -> None:
    assert max(found(name).values()) <= 1e-12

"""The steps of a training, an evaluation and a prediction are those of plain Keras; 2 partitions, float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = [pytest.mark.deep, pytest.mark.exact]

PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def found(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Case -> the lengths of what both have found, and the largest difference."""
    file, path = tmp_path_factory.mktemp("steps") / "found.json", f"{LIBRARY}:{PROGRAMS}"
    words = (PROGRAMS / "steps.py", file)
    done = ranks.run(stack_prefix("tensorflow"), 2, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "case",
    [
        "more steps than batches", "steps that do not divide the batches", "steps_per_execution", "Keras' limits",
        "nothing trains", "a Sequential of a PyDataset",
    ],
)  # fmt: skip
def test_steps_callbacks_and_numbers_are_keras_own(found: Any, case: str) -> None:
    own, expected = found[case]["steps"]

    assert own == expected
    assert found[case]["far"] <= 1e-10


def test_an_evaluation_of_more_steps_than_batches_is_refused_alike(found: Any) -> None:
    (refused,) = set(found["a step after the end"])

    assert refused == "DataError: the data ran out after 4 batches, and 9 were asked for"

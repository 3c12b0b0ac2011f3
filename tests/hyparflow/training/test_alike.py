"""Ranks read the same data and draw the same random numbers: held at each epoch's end; 2 ranks."""

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
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture(scope="module")
def found(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Case -> what each rank raised, or differences; all cases in one launch."""
    root, path = tmp_path_factory.mktemp("alike"), f"{LIBRARY}:{PROGRAMS}"
    words = (PROGRAMS / "alike.py", root)
    done = ranks.run(stack_prefix("tensorflow"), 2, *words, timeout=300, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize("case", ["arrays", "generator", "evaluation"])
def test_data_that_differ_behind_the_first_batch_are_an_error_on_all_ranks(found: Any, case: str) -> None:
    (error,) = set(found[case])

    assert error.startswith("DataError: rank 0 and rank 1 did not read the same data in the last 4 batches: every rank")


def test_data_that_differ_are_an_error_in_any_order(found: Any) -> None:
    (error,) = set(found["shuffled arrays"])

    assert re.match("DataError: rank 0 and rank 1 (do|did) not read the same data", error)


def test_data_that_end_before_the_other_ranks_are_an_error_on_all_ranks(found: Any) -> None:
    (error,) = set(found["end"])

    assert error.startswith("DataError: the data of 1 of 2 ranks end before those of the others: every rank must read")


def test_a_scope_draws_what_one_process_draws_from_the_users_seed(found: Any) -> None:
    assert found["weights"] == 0


def test_a_scope_leaves_the_users_random_numbers_as_plain_keras_would(found: Any) -> None:
    assert found["after"] == 0


def test_without_a_seed_ranks_begin_alike_and_two_models_differ(found: Any) -> None:
    assert found["ranks"] == 0
    assert found["two"] > 0.01


def test_the_seed_of_a_strategy_is_that_of_its_scope(found: Any) -> None:
    assert found["given"] == 0


def test_a_training_without_a_seed_goes_on_in_the_order_of_its_checkpoint(found: Any) -> None:
    assert found["continued"] <= 1e-12

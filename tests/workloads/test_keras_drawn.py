"""Keras programs drawn at random: on ranks they see what one process sees, or fail with the error that names why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.exact

SEEDS = range(1, 25)
#: The largest difference allowed, by the weights' type; losses are float32.
BOUNDS = {"bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-4}


def test_programs_that_are_drawn_see_what_one_process_sees(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    results = ranks.results(stack_prefix("tensorflow"), 2, tmp_path, "keras_drawn", *map(str, SEEDS))
    assert len(results) == len(SEEDS)
    assert not {seed: result for seed, result in results.items() if not _is_right(result)}
    kinds = {result["expected"] == "equal" for result in results.values()}
    assert kinds == {True, False}


def _is_right(result: dict[str, Any]) -> bool:
    if result["alone"] != "no error":
        return False
    if result["expected"] == "equal":
        return isinstance(result["seen"], float) and result["seen"] < BOUNDS[result["kind"]["policy"]]
    return isinstance(result["seen"], list) and all(result["expected"] in error for error in result["seen"])

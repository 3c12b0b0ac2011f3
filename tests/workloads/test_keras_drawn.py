"""Keras programs drawn at random: on ranks they see what one process sees, or fail with the error that names why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.exact

SEEDS = range(1, 41)
#: The largest difference allowed, by the weights' type; losses are float32.
BOUNDS = {"bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-4, "mixed_bfloat16": 5e-2, "mixed_float16": 1e-2}


def test_programs_that_are_drawn_see_what_one_process_sees(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    results = _run(stack_prefix("tensorflow"), 2, tmp_path, SEEDS)
    assert {result["expected"] == "equal" for result in results.values()} == {True, False}


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("number", "first"), [(2, first) for first in range(2000, 2500, 50)] + [(3, 3000), (4, 4000)])
def test_many_programs_that_are_drawn_do_so(
    stack_prefix: Callable[[str], Path], tmp_path: Path, number: int, first: int
) -> None:
    _run(stack_prefix("tensorflow"), number, tmp_path, range(first, first + 50))


#: Programs that are right only with parts of the averager, which are given by module, and what stands there without.
FIXES: dict[str, Any] = {
    "averages in memory of TensorFlow's": (
        27,
        (
            "tensorflow_buffers",
            "tf.raw_ops.DeepCopy(x=tf.experimental.dlpack.from_dlpack(each.__dlpack__()))",
            "tf.experimental.dlpack.from_dlpack(each.__dlpack__())",
        ),
    ),
    "weights that come into being late": (
        10,
        ("keras_optimizer", "        self._follow_new_weights()\n"),
        ("tensorflow_gradients", "        if not self._started_equal:\n            self._require_equal_start()\n"),
    ),
    "adapted layers": (
        5,
        ("tensorflow_gradients", "    require_equal_adaptation(communicator, model)\n"),
        ("tensorflow_gradients", "    finalize_adapted_layers(model)\n"),
    ),
    "other models": (14, ("keras_optimizer", '"the model": _description(self.model), ')),
    "learning rates": (20, ("keras_optimizer", "            self._averager.learning_rate = self._learning_rate\n")),
    "weights changed by callbacks": (
        42,
        (
            "keras_optimizer",
            '            self._require_alike(f"the start of epoch {self._epoch + 1}", self._epoch)\n',
        ),
        ("keras_optimizer", '        self._require_alike("the end of the training", None)\n'),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("fix", FIXES)
def test_a_fix_that_is_reverted_is_found(
    stack_prefix: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fix: str
) -> None:
    package = tmp_path / "hidl_workloads"
    shutil.copytree(ranks.REPOSITORY / "hidl_workloads", package)
    seed, *parts = FIXES[fix]
    for module, part, *instead in parts:
        file = package / "training" / "data_parallel" / f"{module}.py"
        text = file.read_text()
        assert text.count(part) == 1
        file.write_text(text.replace(part, "".join(instead)))
    monkeypatch.chdir(tmp_path)  # python -m imports from there first
    results = ranks.results(stack_prefix("tensorflow"), 2, tmp_path, "keras_drawn", str(seed))
    assert not _is_right(results[str(seed)])


def _run(prefix: Path, number: int, directory: Path, seeds: range) -> dict[str, Any]:
    results = ranks.results(prefix, number, directory, "keras_drawn", *map(str, seeds), timeout=1100)
    assert len(results) == len(seeds)
    assert not {seed: result for seed, result in results.items() if not _is_right(result)}
    return results


def _is_right(result: dict[str, Any]) -> bool:
    if result["alone"] != "no error":
        return False
    if result["expected"] == "equal":
        bound = 5e-2 if "compression" in result["kind"]["options"] else BOUNDS[result["kind"]["policy"]]
        return isinstance(result["seen"], float) and result["seen"] < bound
    return isinstance(result["seen"], list) and all(result["expected"] in error for error in result["seen"])

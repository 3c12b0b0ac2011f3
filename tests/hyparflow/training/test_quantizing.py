"""Quantized models, and LoRA, as in plain Keras: one process, 2 partitions."""

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
CASES = (
    *("int8", "int4", "LoRA", "LoRA, int8", "int8, LoRA", "LoRA of an embedding", "float8", "float8, clipped"),
    *("float8 in parts", "loaded", "quantized after a fit", "LoRA after a fit"),
)


@pytest.fixture(scope="module")
def differences(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Case -> the largest difference from plain Keras, or what each rank raised: all cases in one launch."""
    root, path = tmp_path_factory.mktemp("quantizing"), f"{LIBRARY}:{PROGRAMS}"
    words = (PROGRAMS / "quantizing.py", root, *CASES)
    done = ranks.run(stack_prefix("tensorflow"), 2, *words, timeout=570, PYTHONPATH=path, TF_NUM_INTRAOP_THREADS="1")
    assert done.status == 0, done.stdout + done.stderr
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize("name", ["int8", "int4", "LoRA", "LoRA, int8", "int8, LoRA", "LoRA of an embedding"])
def test_a_model_quantized_or_with_lora_predicts_and_trains_as_in_one_process(differences: Any, name: str) -> None:
    assert differences[name] <= 1e-6  # int8 and LoRA's parts are of float32


@pytest.mark.parametrize("name", ["float8", "float8, clipped"])
def test_the_scales_of_float8_are_set_and_not_clipped_as_in_one_process(differences: Any, name: str) -> None:
    assert differences[name] <= 1e-6


def test_float8_in_several_parts_is_refused_with_its_cure(differences: Any) -> None:
    (error,) = set(differences["float8 in parts"])

    assert error.startswith("RequestError: 'first/inputs_scale' is set anew by each part of a batch")
    assert error.endswith("train with replicas=1 and micro_batches=1; evaluate and predict in any number")


@pytest.mark.parametrize("case", ["called", "not compiled", "in the scope", "after the scope"])
def test_a_quantized_model_from_a_file_is_that_of_one_process(differences: Any, case: str) -> None:
    assert differences["loaded"][case] <= 1e-6


@pytest.mark.parametrize("name", ["quantized after a fit", "LoRA after a fit"])
def test_a_model_changed_after_its_training_is_what_it_has_become(differences: Any, name: str) -> None:
    assert differences[name] <= 1e-6

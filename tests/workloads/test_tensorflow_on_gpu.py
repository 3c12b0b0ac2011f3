"""TensorFlow's training on a GPU: on another device it gives the same weights, and without one it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def results(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ranks.results(stack_prefix("tensorflow"), 2, tmp_path_factory.mktemp("devices"), "tensorflow_on_devices")


@pytest.mark.exact
@pytest.mark.parametrize("buffers", ["staged", "auto"])
@pytest.mark.parametrize("case", ["sgd", "adam", "bfloat16"])
def test_weights_on_another_device_are_the_same_bit_for_bit(results: dict[str, Any], case: str, buffers: str) -> None:
    first, other = results[case]["first"], results[case][buffers]
    path = "staged" if buffers == "staged" or case == "bfloat16" else "gpu-aware"
    assert [rest for _, *rest in first] == 2 * [[["CPU:0"], ""]]
    assert [rest for _, *rest in other] == 2 * [[["CPU:1"], path]]
    assert len({checksum for checksum, *_ in (*first, *other)}) == 1


def test_the_proof_takes_what_mpi_does_right_for_right(results: dict[str, Any]) -> None:
    assert results["alone"] is None


def test_memory_that_a_gpu_aware_mpi_reads_stays_as_it_is(results: dict[str, Any]) -> None:
    assert results["constants"] == 2 * [[1.5, 1.5, 1.5]]


def test_a_run_on_processors_shows_tensorflow_no_gpu(results: dict[str, Any]) -> None:
    assert results["shown"] == [[], "GPU"]


def test_training_on_a_gpu_without_one_is_refused_with_the_reason(stack_prefix: Callable[[str], Path]) -> None:
    words = ("-m", "hidl_workloads.resnet50", "--framework=tensorflow")
    completed = ranks.run(stack_prefix("tensorflow"), 2, *words, HIDL_DEVICE="gpu", HIDL_GPU="0")
    assert completed.status != 0
    assert "has no usable GPU on this rank: it was built for CPUs only" in completed.stderr

"""Data-parallel training: many ranks with a part of the batch each do what one process does with the whole of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidl_workloads.training.data_parallel.buckets import Bucket, Gradient, plan
from hidl_workloads.training.data_parallel.weights import checksum
from tests.tiers import deep
from tests.workloads import ranks

pytestmark = [pytest.mark.real, pytest.mark.exact]

Results = dict[str, Any]


@pytest.fixture(scope="module", params=[2, deep(3)], ids=["2 ranks", "3 ranks"])
def torch_results(
    request: pytest.FixtureRequest,
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    return _results(stack_prefix("pytorch"), request.param, "torch_averaging", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def tensorflow_results(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Results:
    return _results(stack_prefix("tensorflow"), 2, "tensorflow_averaging", tmp_path_factory.mktemp("tensorflow"))


def _results(prefix: Path, number: int, program: str, directory: Path) -> Results:
    file = directory / "results.json"
    completed = ranks.run(prefix, number, "-m", "hidl_workloads.world", program, file)
    assert completed.status == 0, completed.stderr
    results: Results = json.loads(file.read_text())
    return results


@pytest.mark.parametrize("case", ["joint_float32", "joint_float32_one_bucket"])
def test_torch_steps_equal_one_process_on_the_joint_batch(torch_results: Results, case: str) -> None:
    assert torch_results[case] < 1e-6


def test_torch_steps_in_float64_equal_it_more_closely(torch_results: Results) -> None:
    assert torch_results["joint_float64"] < 1e-15


def test_torch_broadcast_gives_every_rank_the_weights_of_rank_0(torch_results: Results) -> None:
    assert torch_results["broadcast"] == 0


def test_torch_weights_are_bitwise_equal_on_all_ranks(torch_results: Results) -> None:
    assert len(set(torch_results["checksums"])) == 1


def test_torch_checksum_catches_training_without_averaging(torch_results: Results) -> None:
    sums = torch_results["checksums_without_average"]
    assert len(set(sums)) == len(sums)


def test_torch_parameter_without_gradient_on_some_ranks_counts_as_zero_there(torch_results: Results) -> None:
    assert torch_results["unused_on_some_ranks"] < 1e-6


def test_torch_parameter_without_gradient_on_all_ranks_has_none(torch_results: Results) -> None:
    assert not torch_results["unused_everywhere"]


def test_torch_bfloat16_weights_are_refused(torch_results: Results) -> None:
    assert "the gradient of spare.bias is bfloat16, which MPI cannot sum" in torch_results["bfloat16_weights"]


def test_torch_gradients_have_memory_of_their_own(torch_results: Results) -> None:
    assert torch_results["own memory"]


def test_torch_one_rank_trains_as_without_averager(torch_results: Results) -> None:
    assert torch_results["one_rank_alone"]


@pytest.mark.deep
def test_tensorflow_steps_equal_one_process_on_the_joint_batch(tensorflow_results: Results) -> None:
    assert tensorflow_results["joint"] < 1e-6


@pytest.mark.deep
def test_tensorflow_broadcast_gives_every_rank_the_weights_of_rank_0(tensorflow_results: Results) -> None:
    assert tensorflow_results["broadcast"] == 0


@pytest.mark.deep
def test_tensorflow_weights_are_bitwise_equal_on_all_ranks(tensorflow_results: Results) -> None:
    assert len(set(tensorflow_results["checksums"])) == 1


@pytest.mark.deep
def test_tensorflow_checksum_catches_training_without_averaging(tensorflow_results: Results) -> None:
    assert len(set(tensorflow_results["checksums_without_average"])) == 2


@pytest.mark.deep
def test_tensorflow_gradients_that_are_constants_stay_what_they_are(tensorflow_results: Results) -> None:
    assert tensorflow_results["constant_gradients"] == [1, 1, 1]


def test_a_variable_keeps_an_average_beyond_the_next_step(tensorflow_results: dict[str, Any]) -> None:
    assert tensorflow_results["kept_averages"] == [2, 1]


def test_buckets_hold_gradients_last_first_up_to_the_limit() -> None:
    gradients = [Gradient(name, size, "float32") for name, size in (("a", 5), ("b", 4), ("c", 100), ("d", 1))]
    assert plan(gradients, limit=36) == (
        Bucket(members=(3,), offsets=(0,), presence=1, size=2, dtype="float32"),
        Bucket(members=(2,), offsets=(0,), presence=100, size=101, dtype="float32"),
        Bucket(members=(1, 0), offsets=(0, 4), presence=9, size=11, dtype="float32"),
    )


def test_buckets_do_not_mix_types() -> None:
    gradients = [Gradient("a", 1, "float32"), Gradient("b", 1, "float64"), Gradient("c", 1, "float64")]
    assert [(bucket.members, bucket.dtype) for bucket in plan(gradients, limit=100)] == [
        ((2, 1), "float64"),
        ((0,), "float32"),
    ]


def test_a_model_without_gradients_has_no_buckets() -> None:
    assert plan([], limit=100) == ()


@pytest.mark.parametrize(
    "other",
    [
        [("b", np.ones(4, np.float32))],
        [("a", np.ones((2, 2), np.float32))],
        [("a", np.ones(4, np.int32).view(np.float32))],
        [("a", np.ones(2, np.float32)), ("a", np.ones(2, np.float32))],
        [("a", np.array([1, 1, 1, np.nextafter(np.float32(1), np.float32(2))], np.float32))],
    ],
    ids=["name", "shape", "bytes", "division", "last bit"],
)
def test_the_checksum_reports_weights_apart(other: list[tuple[str, Any]]) -> None:
    assert checksum([("a", np.ones(4, np.float32))]) != checksum(other)


def test_the_checksum_does_not_depend_on_the_layout_in_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert checksum([("a", array)]) == checksum([("a", np.asfortranarray(array))])

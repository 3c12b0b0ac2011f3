"""The ``#PBS`` lines of job scripts."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers.pbs import header
from hidl_cli.site.schema import Policies


def lines(policies: dict[str, Any] | None = None, **asked: Any) -> tuple[str, ...]:
    allocation = {"job_name": "hidl-resnet50", "nodes": 4, "ranks_per_node": 4, "time_limit": 5400.0} | asked
    return header(Allocation(**allocation), Policies.model_validate(policies or {}))


def test_an_allocation_is_one_chunk_a_node() -> None:
    found = lines(
        {"gpus": "gpus-per-node", "exclusive": True, "export": "all", "directives": ["-l filesystems=home:eagle"]},
        cores_per_rank=8,
        gpus_per_node=4,
        queue="prod",
        account="atlas",
        constraint="system=polaris",
    )
    assert found == (
        "#PBS -N hidl-resnet50",
        "#PBS -q prod",
        "#PBS -A atlas",
        "#PBS -l select=4:ncpus=32:mpiprocs=4:ngpus=4:system=polaris",
        "#PBS -l place=scatter:excl",
        "#PBS -l walltime=01:30:00",
        "#PBS -V",
        "#PBS -j oe -o pbs.log",
        "#PBS -l filesystems=home:eagle",
    )


def test_what_the_site_refuses_is_left_out() -> None:
    policies = dict.fromkeys(("partition", "time", "account"), "never") | {
        "tasks": "none",
        "cpus": "none",
        "export": "none",
    }
    found = lines(policies, queue="prod", account="atlas", cores_per_rank=8)
    assert found == (
        "#PBS -N hidl-resnet50",
        "#PBS -l select=4",
        "#PBS -l place=scatter",
        "#PBS -j oe -o pbs.log",
    )


@pytest.mark.parametrize(("export", "passed"), [("never", True), ("all", True), ("none", False)])
def test_the_users_variables_are_passed_on_as_by_other_schedulers(export: str, *, passed: bool) -> None:
    assert ("#PBS -V" in lines({"export": export})) is passed


def test_processors_are_counted_with_their_hardware_threads() -> None:
    assert "#PBS -l select=4:ncpus=64:mpiprocs=4" in lines(cores_per_rank=8, threads_per_core=2)


def test_a_reservation_is_a_queue() -> None:
    assert "#PBS -q R123" in lines(queue="prod", reservation="R123")


def test_memory_is_requested_of_each_node() -> None:
    assert "#PBS -l select=4:mpiprocs=4:mem=1024mb" in lines({"memory": "mem"}, memory_gib=1.0)


@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_the_shortest_time_limit_is_a_minute(seconds: float) -> None:
    assert "#PBS -l walltime=00:01:00" in lines(time_limit=seconds)


@pytest.mark.parametrize(
    "asked",
    [
        {"queue": "a b"},
        {"account": "x\n#PBS -q other"},
        {"qos": "high"},
        {"constraint": "a100"},
        {"constraint": "a=b:c"},
    ],
)
def test_an_invalid_value_is_an_error(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        lines(**asked)

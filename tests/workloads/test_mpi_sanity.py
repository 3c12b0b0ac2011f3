"""Whether MPI is whole, on real ranks: what is told of a healthy world, and what is found wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workloads import ranks

SANITY = ("-m", "hidl_workloads.world", "hidl_workloads.mpi_sanity")


@pytest.fixture
def mpi(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_a_healthy_world_reports_its_library_its_cores_and_its_nodes(mpi: Path, tmp_path: Path) -> None:
    document = tmp_path / "metrics.json"
    completed = ranks.run(mpi, 2, *SANITY, "--ranks_per_node=2", HIDL_METRICS=str(document))

    assert completed.status == 0, completed.stderr
    metrics = {metric["name"]: metric for metric in json.loads(document.read_text())["metrics"]}
    assert len(set(metrics["mpi_library"]["samples"])) == 1
    assert Path(metrics["mpi_library"]["value"]).is_relative_to(mpi.resolve())
    assert (metrics["nodes"]["value"], metrics["ranks_on_fullest_node"]["value"]) == (1, 2)


def test_ranks_that_have_not_their_cores_are_named_once(mpi: Path) -> None:
    many = len(os.sched_getaffinity(0)) + 1
    completed = ranks.run(mpi, 2, *SANITY, f"--cores={many}")

    assert completed.status != 0
    assert completed.stderr.count("hidl: binding: rank 0 has") == 1


def test_ranks_that_share_cores_are_named(mpi: Path) -> None:
    ours = len(os.sched_getaffinity(0))
    completed = ranks.run(mpi, 2, *SANITY, f"--cores={ours}", HYDRA_BINDING="none")

    assert completed.status != 0
    assert "ranks 0, 1 share cores" in completed.stderr


def test_another_number_of_ranks_on_a_node_is_found(mpi: Path) -> None:
    completed = ranks.run(mpi, 2, *SANITY, "--ranks_per_node=3")

    assert completed.status != 0
    assert "(requested: 3)" in completed.stderr

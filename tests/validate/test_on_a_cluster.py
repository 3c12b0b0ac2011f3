"""``hidl validate`` on a real Slurm of four nodes, through real ReFrame."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import CPUS, SHOWN, LivingCluster
from tests.conftest import Hidl
from tests.validate.conftest import SITE, cases
from tests.waiting import patience, until


@pytest.mark.deep  # `hidl rehearse` does it on a twin, the tutorial of staff on a cluster
def test_the_smoke_suite_passes_on_four_nodes(ordered: Callable[..., Hidl]) -> None:
    hidl = ordered("mpi", "pytorch")

    document = hidl.json("validate", *SITE, "--tag", "smoke", "--jobs", "2")

    found = cases(document)
    assert document["counts"]["pass"] == len(found)
    assert found["mpi_sanity %scale=4-nodes"]["figures"]["nodes"] == [4.0, "nodes"]
    assert {"resnet50_smoke %scale=2-nodes %framework=torch", "kmeans_smoke %scale=2-nodes"} <= found.keys()
    assert {each["run"] for each in hidl.json("results", "list")["results"]} == {case["run"] for case in found.values()}


@pytest.mark.deep
def test_a_study_over_four_nodes_takes_place_in_one_job_and_one_slowed_rank_fails_it(
    ordered: Callable[..., Hidl],
) -> None:
    hidl = ordered("mpi")

    found = cases(hidl.json("validate", *SITE, "--check", "paced", "--check", r"slowed%scale=4-nodes", status=10))

    assert found["paced %scale=4-nodes"]["verdict"] == "pass", found["paced %scale=4-nodes"]["reason"]
    assert found["slowed %scale=4-nodes"]["verdict"] == "fail"
    assert hidl.json("status", found["paced %scale=4-nodes"]["run"])["hosts"] == ["node1", "node2", "node3", "node4"]


@pytest.mark.deep
def test_a_launcher_that_binds_no_ranks_is_found(ordered: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = ordered("mpi", launchers="[srun]")
    # As where TaskPlugin=task/none: the cluster's own Slurm binds.
    unbound = tmp_path / "bin" / "srun"
    unbound.parent.mkdir()
    unbound.write_text(
        f'#!/bin/bash\nexec {shutil.which("srun")} "${{@/#--cpu-bind=cores/--cpu-bind=none}}"\n', encoding="utf-8"
    )
    unbound.chmod(0o755)
    hidl.environment["PATH"] = f"{unbound.parent}:{hidl.environment['PATH']}"

    found = cases(hidl.json("validate", *SITE, "--check", "mpi_sanity%scale=1-node", status=8))

    reason = found["mpi_sanity %scale=1-node"]["reason"]
    assert f"binding: rank 0 has {SHOWN} core(s), rank 1 has {SHOWN} core(s) (requested: {CPUS // 2})" in reason
    assert "Ranks are not bound to their cores (HD046)" in reason
    assert "likely cause: A rank was killed" not in reason  # by srun, after the first had ended all


@pytest.mark.deep
def test_without_accounting_a_job_that_was_cancelled_has_failed_though_reframe_calls_it_completed(
    ordered: Callable[..., Hidl], cluster: LivingCluster
) -> None:
    hidl = ordered("mpi")
    with cluster.restored():
        cluster.switch(accounting=False)
        with hidl.start(
            "validate", *SITE, "--check", "hanging", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as validation:
            cluster("scancel", _job(hidl))
            told, said = validation.communicate(timeout=patience(300))

    assert validation.returncode == 8, said
    document = json.loads(told)
    case = cases(document)["hanging %scale=1-rank"]
    assert case["verdict"] == "fail"
    assert "was cancelled (CANCELLED" in case["reason"]  # by Slurm's own word
    assert (
        '"scheduler": "squeue"' in (hidl.runs.parent / "validate" / document["validation"] / "report.json").read_text()
    )


def _job(hidl: Hidl) -> str:
    """The number of the only run's job, once its program has been started."""

    def found() -> str:
        for status in hidl.runs.glob("*/status.json"):
            job = status.with_name("job.json")
            if json.loads(status.read_text())["step"] == 1 and job.is_file():
                return str(json.loads(job.read_text())["id"] or "")
        return ""

    return until(found)

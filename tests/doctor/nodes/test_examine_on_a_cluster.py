"""``hidl doctor --nodes 4`` on a real Slurm: healthy, and with each fault made real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl

SITE = ("--site", "test-cluster")
FILL = "mount -t tmpfs -o size=1m full /dev/shm && head -c 1048576 /dev/zero > /dev/shm/full"


@pytest.fixture
def with_mpi(on_cluster: Callable[..., Hidl]) -> Hidl:
    """hidl on the cluster, with stack mpi."""
    return on_cluster("mpi")


def site(hidl: Hidl, **keys: Any) -> None:
    """Write a user's own site file over the shipped one."""
    file = hidl.config / "sites" / "test-cluster.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"name": "test-cluster", "extends": "test-cluster", **keys}))


def prefix_of(hidl: Hidl) -> str:
    (installed,) = hidl.json("install", "mpi", *SITE)["installations"]
    return str(installed["prefix"])


def examined(hidl: Hidl, *, status: int = 4) -> dict[tuple[str, str | None], str]:
    """The severity of each finding above info, by rule and place."""
    document = hidl.json("doctor", *SITE, "--stack", "mpi", "--nodes", "4", status=status)
    assert document["unknown"] == []
    return {
        (each["rule"], each["where"]): each["severity"] for each in document["findings"] if each["severity"] != "info"
    }


@pytest.fixture
def faults(cluster: LivingCluster, with_mpi: Hidl, tmp_path: Path) -> Iterator[Hidl]:
    """A cluster each of whose nodes but the first has a fault of its own, and a site that has mpirun_rsh alone."""
    prefix = prefix_of(with_mpi)
    other = tmp_path / "other"
    other.joinpath("bin").mkdir(parents=True)
    other.joinpath("bin", "python").symlink_to(Path(prefix, "bin", "python").resolve())
    other.joinpath("manifest.json").write_text("{}")
    cluster.on("node2", "mount", "--bind", str(other), prefix)
    cluster.on("node3", "mount", "-t", "tmpfs", "empty", prefix)
    cluster.on("node4", "sh", "-c", FILL)
    cluster.kill_on("node3", "sshd")
    site(with_mpi, launchers=["mpirun_rsh"])
    try:
        yield with_mpi
    finally:
        cluster.on("node2", "umount", prefix)
        cluster.on("node3", "umount", prefix)
        cluster.on("node4", "umount", "/dev/shm")
        cluster.mend()


def test_a_healthy_cluster_has_no_finding_above_info(with_mpi: Hidl) -> None:
    document = with_mpi.json("doctor", *SITE, "--stack", "mpi", "--nodes", "4")

    told = {(each["rule"], each["where"]): each["severity"] for each in document["findings"]}
    assert set(told.values()) == {"info"}
    assert ("HD001", "srun --mpi=none") in told
    assert ("HD054", None) in told
    assert document["unknown"] == []


@pytest.mark.deep
def test_srun_with_a_type_that_the_library_does_not_speak_makes_singletons(with_mpi: Hidl) -> None:
    mpi = {"mine": {"family": "mpich", "prefix": prefix_of(with_mpi), "srun_mpi": "none"}}
    site(with_mpi, mpi=mpi, default_mpi="mine")

    assert examined(with_mpi) == {("HD001", "srun --mpi=none"): "error"}


def test_each_fault_of_a_node_is_found_with_its_id_and_its_node(faults: Hidl) -> None:
    assert examined(faults) == {
        ("HD050", "node2"): "error",
        ("HD051", "node3"): "error",
        ("HD006", "node3"): "error",
        ("HD041", "node4"): "error",
    }


def test_in_an_allocation_no_other_job_is_submitted(cluster: LivingCluster, with_mpi: Hidl) -> None:
    before = cluster("squeue", "-h", "--states=all", "-o", "%j").stdout.split()
    command = with_mpi.command("doctor", *SITE, "--stack", "mpi", "--nodes", "2", "--json")
    completed = cluster("salloc", "-N2", "--ntasks-per-node=2", *command, **with_mpi.environment)

    assert completed.returncode == 0, completed.stderr
    told = {(each["rule"], each["where"]) for each in json.loads(completed.stdout)["findings"]}
    assert ("HD001", "srun --mpi=none") in told
    jobs = cluster("squeue", "-h", "--states=all", "-o", "%j").stdout.split()
    assert jobs.count("hidl-doctor") == before.count("hidl-doctor")


@pytest.mark.deep
def test_limits_of_the_shell_reach_the_ranks_of_a_job_and_are_found_there(
    cluster: LivingCluster, with_mpi: Hidl
) -> None:
    command = with_mpi.command("doctor", *SITE, "--stack", "mpi", "--nodes", "1", "--json")
    limited = ("prlimit", "--memlock=65536:65536", *command)
    completed = cluster(*limited, **with_mpi.environment)

    findings = json.loads(completed.stdout)["findings"]
    assert [each["severity"] for each in findings if (each["rule"], each["where"]) == ("HD043", "node1")] == ["info"]

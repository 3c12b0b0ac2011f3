"""More than a handful of nodes: MPI comes up through every launcher, on 2 cores, and without ``eval``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hidl_twin.settings import MAX_NODES

from hidl_cli.site import hidl_cluster
from tests.cluster.cluster import LivingCluster, living
from tests.conftest import Hidl

pytestmark = pytest.mark.real

WAYS = {
    "srun pmi2": ("--stack", "mpi", "--launcher", "srun"),
    "srun pmix": ("--stack", "openmpi", "--launcher", "srun"),
    "Hydra": ("--stack", "mpi", "--launcher", "mpiexec"),
}


@contextmanager
def on_two_cores(place: Path, common_directory: Path, hidl: Hidl, nodes: int) -> Iterator[Hidl]:
    """hidl with a cluster in its default directory and no ``SLURM_CONF``; nodes and jobs share two of the cores."""
    before = os.sched_getaffinity(0)
    user = Hidl(
        {name: value for name, value in hidl.environment.items() if not name.startswith("SLURM_")}
        | {"XDG_STATE_HOME": str(place), "XDG_DATA_HOME": str(common_directory / "cluster-data")}
    )
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        with living(place / "hidl" / "cluster", place, common_directory, nodes=nodes, accounting=False):
            installed = user("install", "mpi", "openmpi", "--site", "test-cluster")
            assert installed.returncode == 0, installed.stderr
            yield user
    finally:
        os.sched_setaffinity(0, before)


def passes(hidl: Hidl, nodes: int, way: str) -> tuple[str, int]:
    size = ("--site", "test-cluster", "--nodes", str(nodes), "--time", "5")
    document = hidl.json("run", "mpi-sanity", *size, *WAYS[way])
    return document["verdict"]["verdict"], len(document["hosts"])


@pytest.mark.deep
def test_twelve_nodes_are_found_and_pass_through_every_launcher(
    place: Path, common_directory: Path, hidl: Hidl
) -> None:
    with on_two_cores(place, common_directory, hidl, 12) as user:
        assert {way: passes(user, 12, way) for way in WAYS} == dict.fromkeys(WAYS, ("pass", 12))

        assert user.json("site", "detect")["site"] == "test-cluster"
        assert user("status").returncode == 0
        refused = user("run", "mpi-sanity", "--site", "test-cluster", "--nodes", "13")
        assert (refused.returncode, "allows 1 to 12 nodes in a job" in refused.stderr) == (6, True)


@pytest.mark.deep
def test_sizes_grow_up_to_the_most_that_hidl_brings_up(place: Path, common_directory: Path, hidl: Hidl) -> None:
    sizes = (8, 9, 16, 32, 48, MAX_NODES)
    with on_two_cores(place, common_directory, hidl, MAX_NODES) as user:
        found = {(nodes, way): passes(user, nodes, way) for nodes in sizes for way in WAYS}
    assert found == {(nodes, way): ("pass", nodes) for nodes in sizes for way in WAYS}


def test_mpich_comes_up_through_slurms_pmi2_whatever_lies_in_memory(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi")
    hidl.add_workload("dense", "dense_heap.py", metrics={"ranks": {"unit": "ranks", "better": "higher"}})
    asked = ("run", "dense", "--site", "test-cluster", "--nodes", "4", "--launcher", "srun")

    document = hidl.json(*asked)

    assert document["state"] == "COMPLETED"


def test_no_node_has_more_neighbours_than_the_kernel_counts(cluster: LivingCluster) -> None:
    told = cluster.on("node2", "ip", "neigh", "show", "dev", "eth0").splitlines()
    assert {line.split()[0].rpartition(".")[2] for line in told if "extern_learn" in line} >= {"1", "11", "13", "14"}


# --- where Slurm's commands look --------------------------------------------------------------------------------------


def test_a_cluster_that_does_not_run_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = tmp_path / "hidl" / "cluster"
    directory.mkdir(parents=True)
    (directory / hidl_cluster.SETTINGS).write_text('{"subnet": 255}')
    assert hidl_cluster.environment({}) == {}


@pytest.mark.parametrize("name", ["SLURM_CONF", "SLURM_CONF_SERVER"])
def test_whichever_process_says_where_slurm_is_is_believed(name: str) -> None:
    assert hidl_cluster.environment({name: "there"}) == {name: "there"}


def test_the_line_that_helps_is_reported_where_no_controller_answers(hidl: Hidl, tmp_path: Path) -> None:
    nowhere = {name: value for name, value in hidl.environment.items() if not name.startswith("SLURM_")}
    told = hidl_cluster.line_that_helps(nowhere)
    assert told == 'hidl cluster up; if it is up in another directory, run: eval "$(hidl cluster env --directory DIR)"'
    assert hidl_cluster.line_that_helps({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None
    (tmp_path / hidl_cluster.SETTINGS).write_text("{}")
    conf = tmp_path / hidl_cluster.CONFIGURATION
    assert hidl_cluster.line_that_helps({"SLURM_CONF": str(conf)}) == f"hidl cluster up --directory {tmp_path}"

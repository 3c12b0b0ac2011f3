"""ResNet-50 on a real Slurm of four nodes: launchers, a study in one job, another MPI in place of the stack's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli.launch.hostlist import expand
from tests.cluster.cluster import LivingCluster
from tests.conftest import REPOSITORY, Hidl

SITE = ("--site", "test-cluster")
#: As little of it as still trains: 2 images of 32 pixels on each rank, 3 steps. The nodes are parts of one machine:
#: with a thread for each core that they claim, threads would wait for threads.
TINY = [f"--set={word}" for word in ("image_size=32", "batch=2", "steps=2", "warmup=1")] + ["--threads", "1"]


def only_run(hidl: Hidl) -> Path:
    (run,) = hidl.runs.iterdir()
    return run


@pytest.mark.deep
@pytest.mark.parametrize("launcher", ["srun", pytest.param("mpiexec", marks=pytest.mark.deep)])
def test_resnet50_on_four_nodes_ends_with_a_verdict(on_cluster: Callable[..., Hidl], launcher: str) -> None:
    hidl = on_cluster("pytorch")

    document = hidl.json("run", "resnet50", *SITE, "--nodes", "4", "--launcher", launcher, *TINY)

    assert (document["state"], document["verdict"]["verdict"]) == ("COMPLETED", "pass")
    (step,) = document["steps"]
    assert len(set(step["metrics"]["weight_checksum"]["samples"])) == 1
    assert document["hosts"] == ["node1", "node2", "node3", "node4"]


def test_a_study_takes_place_in_one_job(on_cluster: Callable[..., Hidl], cluster: LivingCluster) -> None:
    hidl = on_cluster("mpi")
    add_toy(hidl)

    study = ("--scale", "1,2,4", "--repeat", "1", "--baseline", "single", "--launcher", "mpiexec")
    completed = hidl("run", "toy", *SITE, *study)

    assert completed.returncode == 11, completed.stderr  # one repetition gives no interval
    run = only_run(hidl)
    hosts = [(run / "steps" / step / "hosts").read_text().split() for step in ("1", "2", "3")]
    assert [len(names) for names in hosts] == [1, 2, 4]
    job = json.loads((run / "job.json").read_text())["id"]
    assert cluster("squeue", "-h", "--states=all", "-j", job, "-o", "%D %T").stdout.split() == ["4", "COMPLETED"]


@pytest.mark.deep
@pytest.mark.parametrize("launcher", ["srun", pytest.param("mpiexec", marks=pytest.mark.deep)])
def test_copies_show_the_slow_node(on_cluster: Callable[..., Hidl], launcher: str) -> None:
    hidl = on_cluster("mpi")
    add_toy(hidl)

    document = hidl.json(
        *("run", "toy", *SITE, "--scale", "1,2,4", "--launcher", launcher),
        *("--set", "efficiency=0.5", "--set", "slow=node3"),
        status=10,
    )

    study = document["verdict"]["study"]
    assert [node["host"] for node in study["nodes"] if node["slow"]] == ["node3"]
    assert "node3" in document["verdict"]["reason"]
    copies = [step for step in document["steps"] if "copy" in step and step["repetition"] == 1]
    assert [step["hosts"] for step in copies] == [["node1"], ["node2"], ["node3"], ["node4"]]


@pytest.mark.deep
def test_pairs_show_the_node_whose_cable_is_slow(on_cluster: Callable[..., Hidl], cluster: LivingCluster) -> None:
    hidl = on_cluster("mpi")
    recipe = yaml.safe_load((REPOSITORY / "recipes" / "workloads" / "omb-pairs.yaml").read_text())
    hidl.add_workload("pairs", "pairs_first.py", parameters=recipe["parameters"], metrics=recipe["metrics"])
    little = ("latency_iterations=20", "bandwidth_iterations=1", "bandwidth_size=16384", "warmup=0", "repetitions=7")
    slow = ("tbf", "rate", "20mbit", "burst", "16k", "latency", "10s")
    cluster.on("node3", "tc", "qdisc", "add", "dev", "eth0", "root", *slow)
    try:
        document = hidl.json(
            *("run", "pairs", *SITE, "--nodes", "4", "--launcher", "mpiexec"),
            *(f"--set={word}" for word in little),
            status=10,
        )
    finally:
        cluster.on("node3", "tc", "qdisc", "del", "dev", "eth0", "root")

    (bandwidth,) = (field for field in document["verdict"]["pairs"] if field["metric"] == "bandwidth")
    assert [node["host"] for node in bandwidth["nodes"] if node["slow"]] == ["node3"]
    excluded = re.search(r"--exclude=(\S+)", document["verdict"]["hint"])
    assert excluded is not None
    assert "node3" in expand(excluded[1])  # on a busy machine the latency of another may be seen to be bad, too


@pytest.mark.deep
def test_a_study_ends_with_the_repetition_that_settles_it(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi")
    add_toy(hidl)

    document = hidl.json("run", "toy", *SITE, "--scale", "1,2", "--repeat", "20", "--until-settled")

    assert document["verdict"]["verdict"] == "pass"
    assert max(step["repetition"] for step in document["steps"]) == 3


#: The first time it leaves a step behind on all cores of its node, until the second time.
#: The step is started through a variable, because hidl rejects programs that start ranks in each rank.
HOLDS = """
starter=srun
if mkdir "$1"; then
    (setsid env -u SLURM_OVERLAP "$starter" --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --mpi=none \\
        sh -c 'touch "$0/held"; until [ -e "$0/done" ]; do sleep 0.1; done' "$1" > "$1/told" 2>&1 &)
    timeout 60 sh -c 'until [ -e "$0/held" ]; do sleep 0.1; done' "$1"
else
    touch "$1/done"
fi
"""


def test_no_step_waits_for_the_cores_of_the_one_before(on_cluster: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "holds.sh"
    program.write_text(HOLDS)

    own = ("sh", str(program), str(tmp_path / "place"))
    completed = hidl("run", "--stack", "mpi", "--no-mpi", *SITE, "--launcher", "srun", "--repeat", "2", "--", *own)

    assert completed.returncode == 0, completed.stderr
    assert "step creation" not in (only_run(hidl) / "stderr.log").read_text()


def test_an_mpi_of_the_site_takes_the_place_of_the_stacks_own(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi", "openmpi")
    (installed,) = hidl.json("install", "openmpi", *SITE)["installations"]
    mpi = {"ompi": {"family": "openmpi", "prefix": installed["prefix"], "srun_mpi": "pmix"}}
    add_site(hidl, {"name": "test-cluster", "extends": "test-cluster", "mpi": mpi})
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size, MPI.Get_library_version().split()[0])"
    hidl.add_workload("library", "toy.py", program={"command": ["python", "-m", "mpi4py", "-c", program]})

    of_the_site = hidl("run", "library", *SITE, "--nodes", "2", "--mpi", "ompi")
    of_the_stack = hidl("run", "library", *SITE, "--nodes", "2", "--mpi", "stack")

    assert "2 Open" in of_the_site.stderr, of_the_site.stderr
    assert "2 MPICH" in of_the_stack.stderr, of_the_stack.stderr


def test_a_wrong_type_of_mpi_is_found_before_any_work(on_cluster: Callable[..., Hidl]) -> None:
    hidl = on_cluster("mpi")
    (installed,) = hidl.json("install", "mpi", *SITE)["installations"]
    mpi = {"mine": {"family": "mpich", "prefix": installed["prefix"], "srun_mpi": "none"}}
    add_site(hidl, {"name": "test-cluster", "extends": "test-cluster", "mpi": mpi})
    hidl.add_workload("work", "toy.py", program={"command": ["python", "-c", "print('worked')"]})

    completed = hidl("run", "work", *SITE, "--nodes", "2", "--mpi", "mine")

    assert (completed.returncode, "2 singletons" in completed.stderr) == (8, True), completed.stderr
    assert "likely cause: The ranks are singletons" in completed.stderr
    assert "worked" not in (only_run(hidl) / "stdout.log").read_text()


def add_toy(hidl: Hidl) -> None:
    """The workload whose efficiency can be chosen, and a node of which can be slow."""
    hidl.add_workload(
        "toy",
        "toy.py",
        parameters={
            "efficiency": {"type": "float", "default": 1},
            "slow": {"type": "str", "default": ""},
        },
        metrics={"rate": {"unit": "items/s", "better": "higher"}},
        scaling={"metric": "rate", "kind": "weak", "target": 0.8},
    )


def add_site(hidl: Hidl, document: dict[str, Any]) -> None:
    """Write a user's site file."""
    file = hidl.config / "sites" / f"{document['name']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))

"""Ranks on nodes with two hardware threads per core: each has cores of its own, as the plan says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement, Topology
from hidl_cli.mpi import Library
from tests.cluster.cluster import LivingCluster, living
from tests.conftest import Hidl
from tests.tiers import deep

pytestmark = pytest.mark.real

CORES, THREADS = 4, 2
SITE = {
    "name": "threads",
    "title": "Nodes with two threads per core",
    "scheduler": "slurm",
    "launchers": ["srun", "mpiexec"],
    "node_types": {
        "node": {
            "hosts": "node[1-2]",
            "cores": CORES,
            "sockets": 2,
            "threads_per_core": THREADS,
            "memory_gib": 2,
            "gpus": 0,
        },
        "large": {
            "hosts": "large1",
            "cores": 48,
            "sockets": 2,
            "threads_per_core": THREADS,
            "memory_gib": 2,
            "gpus": 0,
        },
    },
    "partitions": {"debug": {"node_type": "node"}, "large": {"node_type": "large"}},
    "default_partition": "debug",
    "policies": {"cpus": "cpus-per-task", "default_time": "00:05:00"},
}
#: The same nodes, given whole.
WHOLE = {
    "name": "whole",
    "title": "Whole nodes with two threads per core",
    "extends": "threads",
    "policies": {"cpus": "none", "exclusive": True, "default_time": "00:05:00"},
}
#: What `taskset -pc` says of each rank, and which processors are one core on that node.
PROGRAM = r"""
import json, os, subprocess
from pathlib import Path
said = subprocess.run(["taskset", "-pc", str(os.getpid())], capture_output=True, text=True, check=True).stdout
place = Path("/sys/devices/system/cpu")
files = place.glob("cpu[0-9]*/topology/thread_siblings_list")
cores = {file.parent.parent.name: file.read_text().strip() for file in files}
print("RANK " + json.dumps([os.uname().nodename, said.split(": ")[1].strip(), cores]), flush=True)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's configuration with that site."""
    config = tmp_path_factory.mktemp("config")
    file = config / "hidl" / "sites" / "threads.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(SITE))
    file.with_name("whole.yaml").write_text(yaml.safe_dump(WHOLE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(config))
        yield config


@pytest.fixture(scope="module")
def threaded(site: Path, common_directory: Path) -> Iterator[LivingCluster]:
    """The twin of that site."""
    with living(common_directory / "threads", common_directory, nodes=2, accounting=False, like="threads") as found:
        yield found


@pytest.fixture
def hidl(site: Path, threaded: LivingCluster, hidl: Hidl) -> Hidl:
    data = threaded.directory.parent / "threads-data"
    own = {"XDG_CONFIG_HOME": str(site), "XDG_DATA_HOME": str(data)}
    ready = Hidl(hidl.environment | threaded.environment | own)
    for name in ("threads", "whole"):
        installed = ready("install", "mpi", "--site", name)
        assert installed.returncode == 0, installed.stderr
    return ready


def expand(listed: str) -> set[int]:
    """``0-1,4`` as numbers."""
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("name", "launcher", "ranks"),
    [
        deep("threads", "srun", 1),
        ("threads", "srun", 4),
        ("threads", "mpiexec", 2),
        deep("threads", "srun", 2),
        deep("threads", "mpiexec", 1),
        deep("threads", "mpiexec", 4),
        ("whole", "srun", 2),
        deep("whole", "mpiexec", 2),
    ],
)
def test_each_rank_has_the_cores_of_the_plan_for_itself(hidl: Hidl, name: str, launcher: str, ranks: int) -> None:
    asked = ("--site", name, "--nodes", "2", "--ranks-per-node", str(ranks), "--launcher", launcher)
    ran = hidl("run", "--stack", "mpi", *asked, "--", "python", "-c", PROGRAM)
    assert ran.returncode == 0, ran.stderr
    printed = hidl("logs").stdout
    told = [json.loads(line.partition("RANK ")[2]) for line in printed.splitlines() if "RANK " in line]
    assert len(told) == 2 * ranks
    for node in ("node1", "node2"):
        of_ranks = []
        for host, processors, cores in told:
            if host.partition(".")[0] == node:
                of_ranks.append({cores[f"cpu{number}"] for number in expand(processors)})
        assert [len(cores) for cores in of_ranks] == [CORES // ranks] * ranks
        assert len(set().union(*of_ranks)) == CORES


@pytest.mark.parametrize(("ranks", "threads"), [(1, 48), (2, 24), (3, 16), (4, 12), (5, 9), (7, 6), (48, 1)])
def test_srun_gives_each_rank_its_cores_of_a_whole_node(threaded: LivingCluster, ranks: int, threads: int) -> None:
    node = Topology(48, 2, THREADS)
    placement = Placement(1, ranks, ranks, threads, bind=True, node=node)
    words = launcher("srun").launch(Request(placement, ("true",), Library("none", "cray-mpich", prefix="/")))
    argv = ["--cpu-bind=verbose,cores" if word == "--cpu-bind=cores" else word for word in words.argv]
    ran = threaded("salloc", "--quiet", "--partition=large", "--nodes=1", "--exclusive", *argv)
    assert ran.returncode == 0, ran.stderr
    masks = [int(mask, 16) for mask in re.findall(r"mask (0x[0-9a-f]+)", ran.stderr)]
    places = [{cpu % 48 for cpu in range(96) if mask >> cpu & 1} for mask in masks]
    assert [len(place) for place in places] == [threads] * ranks
    assert len(set().union(*places)) == ranks * threads
    straddling = sum(len({core // 24 for core in place}) > 1 for place in places)
    assert straddling == max(0, ranks - 24 // threads * 2)

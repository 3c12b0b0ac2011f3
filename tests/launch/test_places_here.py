"""Open MPI, MPICH and Intel MPI asked where they bind the ranks of other machines' nodes (``HWLOC_SYNTHETIC``)."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement, Topology
from hidl_cli.mpi import Family, Library
from tests.waiting import patience

FRONTERA, PERLMUTTER, AURORA = Topology(56, 2, 1), Topology(128, 2, 2), Topology(104, 2, 2)
VISTA, LUMI, GH200 = Topology(144, 2, 1), Topology(128, 2, 2), Topology(288, 4, 1)
#: Nodes, ranks and threads per rank; 3 x 16 on 2 x 24 cores and 7 x 8 on 2 x 28 are those that Open MPI 5 refused.
CASES = [
    (Topology(48, 2, 1), 3, 16),
    (Topology(48, 2, 2), 4, 12),
    (Topology(48, 2, 2), 4, 11),
    (FRONTERA, 7, 8),
    (FRONTERA, 56, 1),
    (PERLMUTTER, 3, 42),
    (AURORA, 12, 8),
    (VISTA, 5, 28),
    (LUMI, 6, 21),
    (GH200, 5, 56),
    (GH200, 3, 50),
    (Topology(40, 4, 1), 6, 3),
    (Topology(60, 6, 2), 15, 3),
    (Topology(224, 8, 1), 34, 5),
]


@pytest.fixture(scope="module")
def intel_mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with the runtime of Intel MPI, as its wheel has it."""
    if platform.machine() != "x86_64":
        pytest.skip("INTEL MPI IS FOR x86_64 ONLY")
    prefix = tmp_path_factory.mktemp("impi")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--prefix", str(prefix), "impi-rt")
    subprocess.run(pip, check=True, capture_output=True, timeout=patience(300))
    return prefix


@contextmanager
def open_pipe() -> Iterator[int]:
    """A standard input that does not end: MPICH's mpiexec dies of SIGPIPE if it reads the end after the ranks ended."""
    here, there = os.pipe()
    try:
        yield here
    finally:
        os.close(here)
        os.close(there)


def told(
    name: str,
    family: Family,
    prefix: Path,
    directory: Path,
    case: tuple[Topology, int, int],
    *arguments: str,
    program: tuple[str, ...] = ("true",),
    variables: Mapping[str, str] | None = None,
    topology: Path | None = None,
) -> str:
    """Return what the launcher prints when it starts the ranks of ``case`` on such a node, or on that of a file."""
    node, ranks, threads = case
    placement = Placement(1, ranks, ranks, threads, bind=True, fills_node=threads == node.cores, node=node)
    library = Library(family, family, prefix=str(prefix), launcher_arguments={name: arguments})
    hosts = directory / "hosts"
    hosts.write_text(f"{os.uname().nodename} slots={ranks}\n")
    launch = launcher(name).launch(Request(placement, program, library, hostfile=str(hosts), on_one_host=True))
    each = (node.cores or 0) // node.sockets
    environment = {
        "PATH": f"{prefix}/bin:/usr/bin:/bin",
        "HOME": os.environ["HOME"],
        **(
            {"HWLOC_XMLFILE": str(topology)}
            if topology
            else {"HWLOC_SYNTHETIC": f"package:{node.sockets} core:{each} pu:{node.threads_per_core}"}
        ),
        "HWLOC_THISSYSTEM": "0",
        **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
        **launch.environment,
        **(variables or {}),
    }
    with open_pipe() as stdin:
        done = subprocess.run(
            launch.argv,
            cwd=directory,
            env=environment,
            stdin=stdin,
            capture_output=True,
            timeout=patience(60),
            check=False,
        )
    printed = (done.stdout + done.stderr).decode().replace("\0", "")
    assert done.returncode == 0, printed
    return printed


def check(case: tuple[Topology, int, int], places: list[set[int]]) -> None:
    """Each rank has all of its cores for itself, and none straddles sockets unless it must."""
    node, ranks, threads = case
    assert [len(place) for place in places] == [threads] * ranks
    assert not any(first & second for first, second in combinations(places, 2))
    each = (node.cores or 0) // node.sockets
    straddling = sum(len({core // each for core in place}) > 1 for place in places)
    assert straddling <= (0 if ranks <= each // threads * node.sockets else node.sockets - 1)


def bound_by_open_mpi(printed: str) -> list[set[int]]:
    """Return the cores of each rank from the map that Open MPI displays."""
    bound = [re.findall(r"core:L([\d,-]+)", line) for line in printed.splitlines() if "Binding: package" in line]
    return [set().union(*map(expand, cores)) for cores in bound]


def expand(listed: str) -> set[int]:
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(("ranks", "threads"), [(2, 4), (4, 2), (2, 3)])
def test_open_mpi_where_sockets_have_different_sizes(
    stack_prefix: Callable[[str], Path], tmp_path: Path, ranks: int, threads: int
) -> None:
    xml = tmp_path / "six-and-two.xml"
    draw = ("lstopo-no-graphics", "--input", "package:2 core:6 pu:1", "--restrict", "0xff")
    try:
        subprocess.run((*draw, "--of", "xml", "-f", str(xml)), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("NO lstopo TO DRAW A TOPOLOGY")
    case = (Topology(8, 1, 1, knows_sockets=False), ranks, threads)
    arguments = ("--display", "map-devel", "--rtos", "donotlaunch")
    printed = told("mpirun", "openmpi", stack_prefix("openmpi"), tmp_path, case, *arguments, topology=xml)
    check(case, bound_by_open_mpi(printed))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_open_mpi(case: tuple[Topology, int, int], stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    arguments = ("--display", "map-devel", "--rtos", "donotlaunch")
    printed = told("mpirun", "openmpi", stack_prefix("openmpi"), tmp_path, case, *arguments)
    check(case, bound_by_open_mpi(printed))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mpich(case: tuple[Topology, int, int], stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    # Each rank's process prints its own mask: on one stream, the lines of many ranks can run into each other.
    arguments = ("-outfile-pattern", "rank.%r")
    told("mpiexec", "mpich", stack_prefix("mpi"), tmp_path, case, *arguments, variables={"HYDRA_TOPO_DEBUG": "1"})
    printed = [(tmp_path / f"rank.{rank}").read_text() for rank in range(case[1])]
    masks = [mask for text in printed for mask in re.findall(r"process \d+ binding: ([01]+)", text)]
    threads = case[0].threads_per_core
    check(case, [{cpu // threads for cpu, bit in enumerate(mask) if bit == "1"} for mask in masks])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_intel_mpi(case: tuple[Topology, int, int], intel_mpi: Path, tmp_path: Path) -> None:
    program = ("sh", "-c", 'echo "PINNED $I_MPI_PIN_INFO."')
    root = {"I_MPI_ROOT": str(intel_mpi)}
    printed = told("mpiexec", "intel-mpi", intel_mpi, tmp_path, case, program=program, variables=root)
    pinned = re.findall(r"PINNED ([\d,]+)\.", printed)
    threads = case[0].threads_per_core
    check(case, [{cpu // threads for cpu in expand(cpus)} for cpus in pinned])

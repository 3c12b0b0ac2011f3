"""The cores of each rank, by arithmetic on the node's sockets, from the words and variables that each launcher gets.

Each launcher's documented semantics are written down here a second time. ``tests/launch/test_places_here.py`` asks
those launchers that start on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.placement import Placement, bind_to_cores
from hidl_cli.mpi import Family
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Partition, Site
from tests.launch.launchers.asking import library

Cores = list[int]


@dataclass(frozen=True)
class Node:
    """A node, and where its usable cores are."""

    sockets: tuple[tuple[int, ...], ...]
    threads: int

    @property
    def cores(self) -> Cores:
        return [core for socket in self.sockets for core in socket]


@dataclass(frozen=True)
class Start:
    """What a launcher is given, for ``ranks`` per node of ``each`` cores."""

    words: Sequence[str]
    variables: Mapping[str, str]
    ranks: int
    each: int
    node: Node

    def value(self, option: str) -> str | None:
        """Return what follows ``option``, after ``=`` or as the next word."""
        for word, following in pairwise([*self.words, ""]):
            if word == option:
                return following
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
        return None

    def number(self, option: str) -> int:
        found = self.value(option)
        assert found is not None, (option, self.words)
        return int(found)

    def in_a_row(self, each: int, cores: Cores | None = None) -> list[Cores]:
        cores = self.node.cores if cores is None else cores
        return [cores[rank * each : (rank + 1) * each] for rank in range(self.ranks)]

    def by_turns(self, each: int) -> list[Cores]:
        """One rank on each socket, then the second ones; those that do not fit take what is left of all sockets."""
        free = [list(socket) for socket in self.node.sockets]
        found: list[Cores] = []
        for rank in range(self.ranks):
            sockets = [free[(rank + turn) % len(free)] for turn in range(len(free))]
            whole = next((socket for socket in sockets if len(socket) >= each), None)
            if whole is None:
                rest = [core for socket in free for core in socket]
                found.append(rest[:each])
                free = [[core for core in socket if core not in found[-1]] for socket in free]
            else:
                found.append(whole[:each])
                del whole[:each]
        return found


def srun(start: Start) -> list[Cores]:
    """srun(1): ``--cpus-per-task`` counts hardware threads unless one of each core is used; ``block:cyclic``."""
    assert start.value("--cpu-bind") == "cores"
    threads = 1 if start.value("--threads-per-core") == "1" else start.node.threads
    assert start.number("--ntasks-per-node") == start.ranks
    return start.by_turns(-(-start.number("--cpus-per-task") // threads))


def hydra(start: Start) -> list[Cores]:
    """``mpiexec -bind-to core:N``: in a row, or by turns with ``-map-by socket``, where it wraps around instead."""
    kind, _, each = str(start.value("-bind-to")).partition(":")
    assert kind == "core"
    if start.value("-map-by") is None:
        return start.in_a_row(int(each))
    assert start.value("-map-by") == "socket"
    assert all(len(socket) // int(each) * len(start.node.sockets) >= start.ranks for socket in start.node.sockets)
    return start.by_turns(int(each))


def intel(start: Start) -> list[Cores]:
    """Intel MPI's reference: a domain is counted in hardware threads unless I_MPI_PIN_CELL is core."""
    assert start.variables["I_MPI_PIN"] == "1"
    size, _, layout = start.variables["I_MPI_PIN_DOMAIN"].partition(":")
    threads = 1 if start.variables.get("I_MPI_PIN_CELL") == "core" else start.node.threads
    each = -(-int(size) // threads)
    if layout == "scatter":  # not documented: its proxy crashes
        assert not 1 < start.ranks % len(start.node.sockets) < len(start.node.sockets) - 1
    return start.in_a_row(each) if layout == "compact" else start.by_turns(each)


def mvapich2(start: Start) -> list[Cores]:
    """MVAPICH2's guide: the policy hybrid, linear by default; spread: each rank begins at its share of the node."""
    assert start.variables["MV2_CPU_BINDING_POLICY"] == "hybrid"
    each, cores = int(start.variables["MV2_THREADS_PER_PROCESS"]), start.node.cores
    spread = start.variables.get("MV2_HYBRID_BINDING_POLICY") == "spread"
    share = len(cores) // start.ranks if spread else each
    return [cores[rank * share : rank * share + each] for rank in range(start.ranks)]


def open_mpi(start: Start) -> list[Cores]:
    """prterun(1): ``ppr`` fills one package after the other, and refuses what does not fit; or a rankfile."""
    if start.words[0] == "bash":
        assert "--map-by" not in start.words
        return [listed(places) for places in start.words[5].split()]
    found = re.fullmatch(r"ppr:(\d+):node(?::PE=(\d+))?", str(start.value("--map-by")))
    assert found, start.words
    assert int(found[1]) == start.ranks
    if start.value("--bind-to") == "none":
        return [start.node.cores]
    each = int(found[2])
    places = [
        list(socket[first : first + each])
        for socket in start.node.sockets
        for first in range(0, len(socket) - each + 1, each)
    ]
    assert len(places) >= start.ranks, f"refused by PRRTE: {start.words}"
    return places[: start.ranks]


def pals(start: Start) -> list[Cores]:
    """``man mpiexec`` of PALS: ``depth`` counts from CPU 0 on, reserved or not; ``list`` names the CPUs."""
    kind, _, places = str(start.value("--cpu-bind")).partition(":")
    if kind == "list":
        return [listed(place) for place in places.split(":")]
    assert kind == "depth"
    return start.in_a_row(start.number("--depth"), [*range(1000)])


def jsrun(start: Start) -> list[Cores]:
    """jsrun(1): resource sets in a row, and ranks in a row within them."""
    assert start.value("-b") == f"packed:{start.each}"
    assert start.number("-r") * start.number("-a") == start.ranks
    assert start.number("-c") == start.number("-a") * start.each
    return start.in_a_row(start.each)


def flux(start: Start) -> list[Cores]:
    """flux-run(1): each task gets cores of its own; which, Flux decides."""
    assert "cpu-affinity=per-task" in start.words
    return start.in_a_row(start.number("-c"))


def listed(text: str) -> Cores:
    """``16-23,40`` as numbers."""
    found: Cores = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


SEMANTICS = {
    ("srun", "mpich"): srun,
    ("mpiexec", "mpich"): hydra,
    ("mpiexec", "intel-mpi"): intel,
    ("ibrun", "intel-mpi"): intel,
    ("ibrun", "mvapich2"): mvapich2,
    ("mpirun_rsh", "mvapich2"): mvapich2,
    ("mpirun", "openmpi"): open_mpi,
    ("pals", "cray-mpich"): pals,
    ("jsrun", "spectrum-mpi"): jsrun,
    ("flux", "mpich"): flux,
}
#: Those that cannot be told to keep a rank within a socket, or only if the sockets hold whole shares of the node.
IN_A_ROW = (jsrun, flux)
IF_EVEN = (mvapich2,)
#: Those whose semantics depend on hardware threads.
COUNT_THREADS = (srun, intel)
#: Those that let one rank straddle where one must.
FEWEST = (srun, open_mpi, pals)


def sites() -> Iterator[tuple[str, Site]]:
    """Yield each distinct node of the shipped sites, as a site with one partition, with its name."""
    seen = set()
    for name in (entry.name for entry in list_all("site") if entry.origin == "shipped"):
        site = load(RULES, name)
        for key, node in site.node_types.items():
            shape = (node.cores, node.sockets, tuple(node.reserved_cores))
            if node.cores and shape not in seen:
                seen.add(shape)
                partitions = {"p": Partition(node_type=key)}  # type: ignore[call-arg]  # the defaults
                changes = {"node_types": {key: node}, "partitions": partitions, "default_partition": "p"}
                yield f"{name}-{key}", site.model_copy(update=changes)


SITES = dict(sites())


def start(name: str, family: Family, placement: Placement, node: Node) -> Start:
    """Ask the launcher of hidl."""
    launch: Launch = launcher(name).launch(Request(placement, ("true",), library(family)))
    variables = dict(launch.environment)
    variables |= dict(word.split("=", 1) for word in launch.argv if re.match(r"[A-Z0-9_]+=", word))
    return Start(launch.argv, variables, placement.ranks_per_node, placement.threads_per_rank, node)


def node_of(site: Site, threads: int) -> Node:
    """Return the node of the site's partition, with so many threads per core."""
    kind = site.node_type()
    assert kind.cores
    installed = kind.cores + len(kind.reserved_cores)
    sockets = kind.sockets or 1
    each = installed // sockets
    numbers = [range(socket * each, (socket + 1) * each) for socket in range(sockets)]
    assert installed % sockets == 0
    return Node(tuple(tuple(core for core in one if core not in kind.reserved_cores) for one in numbers), threads)


def with_threads(site: Site, threads: int) -> Site:
    nodes = {name: kind.model_copy(update={"threads_per_core": threads}) for name, kind in site.node_types.items()}
    return site.model_copy(update={"node_types": nodes})


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", SITES)
def test_ranks_have_all_of_their_cores_for_themselves_and_straddle_sockets_only_if_they_must(
    name: str, threads: int
) -> None:
    site, node = with_threads(SITES[name], threads), node_of(SITES[name], threads)
    socket_of = {core: number for number, socket in enumerate(node.sockets) for core in socket}
    for ranks in range(1, len(node.cores) + 1):
        full = len(node.cores) // ranks
        for each in {full, max(1, full - 1)}:
            (placement,) = bind_to_cores(site, [Placement.of_nodes(2, ranks)], threads=each)
            assert placement.bind
            even = ranks % len(node.sockets) == 0 and len(node.cores) % ranks == 0
            fitting = sum(len(socket) // each for socket in node.sockets)
            for (by, family), semantics in SEMANTICS.items():
                if threads > 1 and semantics not in COUNT_THREADS:
                    continue  # nothing differs
                asked = start(by, family, placement, node)
                places = semantics(asked)
                what = (by, family, ranks, each, asked.words, asked.variables)
                assert [len(set(place)) for place in places] == [each] * ranks, what
                taken = {core for place in places for core in place}
                assert (len(taken), taken - socket_of.keys()) == (ranks * each, set()), what
                straddling = sum(len({socket_of[core] for core in place}) > 1 for place in places)
                if semantics in IN_A_ROW or (semantics in IF_EVEN and not even):
                    continue
                most = max(0, ranks - fitting) if semantics in FEWEST or ranks <= fitting else len(node.sockets) - 1
                assert straddling <= most, what


def test_auroras_twelve_ranks_are_bound_as_its_guide_binds_them() -> None:
    site = load(RULES, "aurora")
    (placement,) = bind_to_cores(site, [Placement.of_nodes(2, 12)])
    words = launcher("pals").launch(Request(placement, ("true",), library("mpich"))).argv
    assert words[words.index("--cpu-bind") + 1] == (
        "list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"
    )


def test_ibrun_starts_ranks_of_open_mpi_that_must_straddle_unbound() -> None:
    (placement,) = bind_to_cores(load(RULES, "frontera"), [Placement.of_nodes(4, 7)])
    launch = launcher("ibrun").launch(Request(placement, ("true",), library("openmpi")))
    assert launch.environment["MY_OPENMPI_OPTIONS"] == "--map-by ppr:7:node --bind-to none"
    two = replace(placement, ranks_per_node=2, ranks=8, threads_per_rank=28)
    launch = launcher("ibrun").launch(Request(two, ("true",), library("openmpi")))
    assert launch.environment["MY_OPENMPI_OPTIONS"] == "--map-by ppr:2:node:PE=28 --bind-to core"

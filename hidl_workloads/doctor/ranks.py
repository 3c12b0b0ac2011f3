"""The ranks of one launch: one world, one MPI library, cores of their own.

Facts of one rank are taken in its own process, once MPI is initialised; the rules see all ranks together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hidl_workloads import launched
from hidl_workloads.doctor import cores, node_probe
from hidl_workloads.doctor.cores import Core
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_THREADS = "OMP_NUM_THREADS"

_NAMED = 8
"""So many ranks are named in one sentence at most."""


@dataclass(frozen=True)
class Rank:
    """Facts of one rank; None: unknown. ``size`` is that of its world.

    ``cores`` are those that it may use, ``of_the_node`` those that the job may use on its host. ``threads``: what its
    libraries are held to. ``libraries``: the MPI libraries in its memory; ``strange``: those of them that are not its
    stack's, where they should be. ``version``: the MPI library's own. ``boot``: as ``Node.boot``. ``told_size``: the
    number of ranks that its launcher told it. ``cpus``: how many hardware threads it may use.
    """

    rank: int
    size: int
    host: str
    cores: frozenset[Core] = frozenset()
    of_the_node: frozenset[Core] = frozenset()
    threads: int | None = None
    libraries: tuple[str, ...] | None = None
    strange: tuple[str, ...] = ()
    version: str | None = None
    boot: str | None = None
    told_size: int | None = None
    cpus: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {**asdict(self), "cores": sorted(self.cores), "of_the_node": sorted(self.of_the_node)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rank:
        """What ``to_json`` gave; ``TypeError`` or ``KeyError`` where it is something else."""
        sets = {name: frozenset((core[0], core[1]) for core in document[name]) for name in ("cores", "of_the_node")}
        libraries = document["libraries"]
        lists = {
            "libraries": None if libraries is None else tuple(libraries),
            "strange": tuple(document.get("strange", ())),
        }
        return cls(**{**document, **sets, **lists})


@dataclass(frozen=True)
class World:
    """All ranks of one launch. ``expected``: how many were asked for; ``cores_per_rank``: what each is to be bound to.

    None: nobody asked for it. ``launch``: what started them, in words; ``instead``: launches that came up as they
    should. ``boots``: by host, also of hosts that have no rank. ``evidence``: lines about what the launcher told.
    """

    ranks: tuple[Rank, ...]
    expected: int | None = None
    cores_per_rank: int | None = None
    launch: str | None = None
    instead: tuple[str, ...] = ()
    boots: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()

    @property
    def by_host(self) -> dict[str, list[Rank]]:
        """The ranks of each host."""
        found: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            found.setdefault(rank.host, []).append(rank)
        return found

    @property
    def one_machine(self) -> bool:
        """Are several of the hosts namespaces of one machine? Then they use the same cores, whatever each is given."""
        boots = {**self.boots, **{rank.host: rank.boot for rank in self.ranks if rank.boot}}
        return len(set(boots.values())) < len(boots)

    @property
    def cost(self) -> Severity:
        """How bad it is that ranks get in each other's way."""
        return "info" if self.one_machine else "warning"


def this_rank(rank: int, size: int, *, version: str | None = None) -> Rank:
    """Facts of this very process; it starts nothing. ``version``: the MPI library's own, once there is one."""
    from hidl_workloads import mpi_library

    threads = os.environ.get(_THREADS, "")
    libraries = mpi_library.mapped()
    return Rank(
        rank,
        size,
        os.uname().nodename,
        cores=cores.cores_of(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(),
        of_the_node=cores.of_the_node(),
        threads=int(threads) if threads.isdecimal() else None,
        libraries=None if libraries is None else tuple(map(str, libraries)),
        strange=tuple(map(str, mpi_library.strange(libraries or ()))),
        version=version,
        boot=node_probe.read(node_probe.ROOT / "proc/sys/kernel/random/boot_id") or None,
        told_size=launched.told(launched.SIZES, os.environ),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    )


RULES: Rules[World] = Rules()


@RULES.rule(
    "HD001",
    "The ranks are singletons",
    severity="error",
    why="The launcher's process-management interface (PMI) and the program's MPI library do not match: each rank is "
    "alone in a world of size 1, all do the same work, nothing is exchanged, and every rank exits with status 0.",
)
def singletons(world: World) -> Iterator[Evidence]:
    """Several ranks were requested, but each is alone in its world."""
    if are_singletons(world):
        what = f"{world.expected} ranks requested, but each is alone in an MPI world of size 1"
        seen = f"{what} ({world.expected} singletons)"
        yield Evidence("; ".join((seen, *_library(world), *world.evidence)), _other_launch(world), world.launch)


@RULES.rule(
    "HD003",
    "More than one MPI library",
    severity="error",
    why="Two MPI libraries in one process have separate state, one of them uninitialised; a library that replaces the "
    "stack's own may have another ABI. Both crash, hang, or give a world of size 1.",
)
def several_libraries(world: World) -> Iterator[Evidence]:
    """Two libraries in a process, another one than the stack's own, or different ones in different processes."""
    fix = "env | grep -E 'LD_PRELOAD|LD_LIBRARY_PATH' shows its origin; unset it, or unload its module"
    many = Counter(rank.libraries for rank in world.ranks if rank.libraries and len(rank.libraries) > 1)
    for libraries, count in many.items():
        yield Evidence(f"{_ranks(count)} with {len(libraries or ())}: {', '.join(libraries or ())}", fix, world.launch)
    for strange in sorted({rank.strange for rank in world.ranks if rank.strange}):
        yield Evidence(f"{', '.join(strange)} replaces the stack's own", fix, world.launch)


@RULES.rule(
    "HD008",
    "The world has another size",
    severity="error",
    why="The program splits its work among another number of ranks than requested, and its results are attributed to "
    "the wrong number.",
)
def another_size(world: World) -> Iterator[Evidence]:
    """The size of the MPI world differs from the request."""
    sizes = sorted({rank.size for rank in world.ranks})
    if world.expected is None or not sizes or sizes == [world.expected] or are_singletons(world):
        return
    found = " and ".join(map(str, sizes))
    seen = f"{world.expected} ranks requested, but the MPI world has {found}"
    fix = "the launcher started another number than $HIDL_WORLD_SIZE: compare its -n with the job's"
    yield Evidence("; ".join((seen, *_library(world), *world.evidence)), fix, world.launch)


@RULES.rule(
    "HD045",
    "More threads than cores",
    severity="warning",
    why="Waiting ranks spin and take cores from those that they wait for: several times slower if ranks x threads "
    "exceed the cores of a node.",
)
def oversubscribed(world: World) -> Iterator[Evidence]:
    """Ranks x threads of a host exceed its cores."""
    for host, ranks in world.by_host.items():
        threads, own = sum(rank.threads or 1 for rank in ranks), ranks[0].of_the_node
        if own and threads > len(own):
            each = ranks[0].threads or 1
            seen = f"{len(ranks)} rank(s) x {each} thread(s) on {len(own)} core(s)"
            yield Evidence(seen, "fewer --ranks-per-node, or fewer --threads", _where(host, world), world.cost)
            return  # one host tells for all: they are filled alike


@RULES.rule(
    "HD046",
    "Ranks are not bound to their cores",
    severity="warning",
    why="The kernel moves ranks between cores and NUMA nodes: times vary, and a rank may be far from its NIC or GPU.",
)
def unbound(world: World) -> Iterator[Evidence]:
    """A rank has another number of cores than its placement."""
    if world.cores_per_rank is None:
        return
    wrong = [rank for rank in world.ranks if rank.cores and len(rank.cores) != world.cores_per_rank]
    if wrong:
        listed = ", ".join(f"rank {rank.rank} has {len(rank.cores)} core(s)" for rank in wrong[:_NAMED])
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        fix = "choose a launcher that binds (--launcher); for srun, set TaskPlugin=task/affinity in slurm.conf"
        if all(len(rank.cores) < world.cores_per_rank == rank.cpus for rank in wrong):
            more += f", as hardware threads were counted: each has {world.cores_per_rank}"
            fix = (
                "set threads_per_core of the node type in the site file; srun --threads-per-core=1, or "
                "I_MPI_PIN_CELL=core for Intel MPI, counts cores"
            )
        yield Evidence(f"{listed}{more} (requested: {world.cores_per_rank})", fix, world.launch, world.cost)


@RULES.rule(
    "HD047",
    "Ranks are bound to the same core",
    severity="warning",
    why="Ranks that share a core take turns, and each message waits for the next turn: a hundred times slower, without "
    "an error.",
)
def same_core(world: World) -> Iterator[Evidence]:
    """Bound ranks of a host share cores."""
    for host, ranks in world.by_host.items():
        users: dict[Core, list[int]] = {}
        for rank in ranks:
            for core in rank.cores if _is_bound(rank, world) else ():
                users.setdefault(core, []).append(rank.rank)
        shared = sorted({tuple(found) for found in users.values() if len(found) > 1})
        if shared:
            listed = "; ".join(f"ranks {', '.join(map(str, found[:_NAMED]))} share cores" for found in shared[:_NAMED])
            fix = (
                "remove taskset, numactl and *_BIND* variables around the launcher; "
                "if srun binds, --tune MV2_ENABLE_AFFINITY=0"
            )
            yield Evidence(listed, fix, _where(host, world), world.cost)
            return


@RULES.rule(
    "HD009",
    "Ranks have different versions of the MPI library",
    severity="error",
    why="The protocol between ranks changes with the version of the MPI library: ranks hang, or misread each other's "
    "messages.",
)
def different_libraries(world: World) -> Iterator[Evidence]:
    """The version of the MPI library differs between ranks."""
    versions = Counter(rank.version for rank in world.ranks if rank.version)
    for version, _ in versions.most_common()[1:]:
        hosts = sorted({rank.host for rank in world.ranks if rank.version == version})
        seen = f"{version} on {', '.join(hosts[:_NAMED])}; {versions.most_common()[0][0]} elsewhere"
        yield Evidence(seen, "install one version on all nodes, or exclude these (--exclude)", world.launch)


def are_singletons(world: World) -> bool:
    """Is each rank alone, although several were asked for, and their launcher knows of several?"""
    alone = (rank.size == 1 and rank.told_size != 1 for rank in world.ranks)
    return (world.expected or 1) > 1 and bool(world.ranks) and all(alone)


def _is_bound(rank: Rank, world: World) -> bool:
    """Does somebody hold this rank to less than its node has, or to what it was to be held to?"""
    if world.cores_per_rank is not None:
        return len(rank.cores) <= world.cores_per_rank
    return bool(rank.of_the_node) and rank.cores < rank.of_the_node


def _other_launch(world: World) -> str:
    if world.instead:
        return f"use one that works: {', '.join(world.instead)}"
    return (
        "use the launcher of that library, or set `srun_mpi` of the MPI library in the site file to a type that it "
        "supports: pmix for Open MPI, pmi2 for MPICH and derivatives (srun --mpi=list)"
    )


def _library(world: World) -> Iterable[str]:
    first = world.ranks[0]
    if first.version:
        yield f"MPI library: {first.version}" + (f" ({', '.join(first.libraries)})" if first.libraries else "")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _where(host: str, world: World) -> str:
    return f"{host}, {world.launch}" if world.launch else host

"""Rules for the ranks of a launch: their MPI world, MPI library and cores.

The facts of a rank are collected in its own process after MPI is initialized. Rules are applied to all ranks together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hidl_workloads import launcher_environment
from hidl_workloads.doctor import cores, node_probe
from hidl_workloads.doctor.cores import Core
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_THREADS = "OMP_NUM_THREADS"

_NAMED = 8
"""Maximum number of ranks to list in a message."""


@dataclass(frozen=True)
class Rank:
    """Facts about a rank, which are None if unknown.

    Attributes:
        size: Size of its MPI world.
        cores: Cores that the rank may use.
        of_the_node: Cores that the job may use on the host.
        threads: Number of threads that its libraries use.
        libraries: MPI libraries that are loaded.
        strange: Loaded MPI libraries that should be the stack's but are not.
        version: Version reported by the MPI library.
        boot: Boot id, as in ``Node``.
        told_size: Number of ranks according to the launcher.
        cpus: Number of hardware threads that the rank may use.
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
        """Return a JSON-serializable dictionary."""
        return {**asdict(self), "cores": sorted(self.cores), "of_the_node": sorted(self.of_the_node)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rank:
        """Parse a document of ``to_json``.

        Raises:
            TypeError: If the document is invalid.
            KeyError: If a field is missing.
        """
        sets = {name: frozenset((core[0], core[1]) for core in document[name]) for name in ("cores", "of_the_node")}
        libraries = document["libraries"]
        lists = {
            "libraries": None if libraries is None else tuple(libraries),
            "strange": tuple(document.get("strange", ())),
        }
        return cls(**{**document, **sets, **lists})


@dataclass(frozen=True)
class World:
    """All ranks of a launch.

    Attributes:
        expected: Requested number of ranks, or None.
        cores_per_rank: Requested number of cores per rank, or None.
        launch: Description of the launch.
        instead: Descriptions of other launches, which succeeded.
        boots: Boot ids by host, including hosts without ranks.
        evidence: Additional lines about the launcher's environment.
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
        """True if several hosts are namespaces of one machine and therefore share its cores."""
        boots = {**self.boots, **{rank.host: rank.boot for rank in self.ranks if rank.boot}}
        return len(set(boots.values())) < len(boots)

    @property
    def cost(self) -> Severity:
        """The severity of findings about ranks that compete for cores."""
        return "info" if self.one_machine else "warning"


def this_rank(rank: int, size: int, *, version: str | None = None) -> Rank:
    """Collect the facts of this process; ``version`` is the version reported by the MPI library, if known."""
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
        told_size=launcher_environment.read_number(launcher_environment.SIZES, os.environ),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    )


RULES: Rules[World] = Rules()


@RULES.rule(
    "HD001",
    "The ranks are singletons",
    severity="error",
    why="The launcher's process-management interface (PMI) does not match the program's MPI library. Each rank is "
    "alone in a world of size 1, all ranks do the same work without communicating, and all exit with status 0.",
)
def singletons(world: World) -> Iterator[Evidence]:
    """Report an error if several ranks were requested but each is alone in its MPI world."""
    if are_singletons(world):
        alone = f"{world.expected} ranks requested, but each is alone in an MPI world of size 1"
        seen = f"{alone} ({world.expected} singletons)"
        yield Evidence("; ".join((seen, *_library(world), *world.evidence)), _other_launch(world), world.launch)


@RULES.rule(
    "HD003",
    "More than one MPI library",
    severity="error",
    why="Two MPI libraries in one process have separate state, and one of them is not initialized. A library that "
    "replaces the stack's own may have another ABI. Ranks crash, hang or are alone in a world of size 1.",
)
def several_libraries(world: World) -> Iterator[Evidence]:
    """Report an error if a process loads several MPI libraries, or another one than the stack's own."""
    fix = "find its origin with env | grep -E 'LD_PRELOAD|LD_LIBRARY_PATH', then unset it or unload its module"
    many = Counter(rank.libraries for rank in world.ranks if rank.libraries and len(rank.libraries) > 1)
    for libraries, count in many.items():
        yield Evidence(f"{_ranks(count)} with {len(libraries or ())}: {', '.join(libraries or ())}", fix, world.launch)
    for strange in sorted({rank.strange for rank in world.ranks if rank.strange}):
        yield Evidence(f"{', '.join(strange)} replaces the stack's own", fix, world.launch)


@RULES.rule(
    "HD008",
    "The world has another size",
    severity="error",
    why="The program splits its work among a different number of ranks than requested, and its results are attributed "
    "to the wrong number.",
)
def another_size(world: World) -> Iterator[Evidence]:
    """Report an error if the size of the MPI world differs from the request."""
    sizes = sorted({rank.size for rank in world.ranks})
    if world.expected is None or not sizes or sizes == [world.expected] or are_singletons(world):
        return
    found = " and ".join(map(str, sizes))
    seen = f"{world.expected} ranks requested, but the MPI world has {found}"
    fix = "compare the launcher's -n with $HIDL_WORLD_SIZE of the job"
    yield Evidence("; ".join((seen, *_library(world), *world.evidence)), fix, world.launch)


@RULES.rule(
    "HD045",
    "More threads than cores",
    severity="warning",
    why="Waiting ranks spin and compete for cores with the ranks that they wait for. Programs are several times slower "
    "if ranks x threads exceeds the number of cores of a node.",
)
def oversubscribed(world: World) -> Iterator[Evidence]:
    """Report a warning if ranks x threads on a host exceeds its number of cores."""
    for host, ranks in world.by_host.items():
        threads, own = sum(rank.threads or 1 for rank in ranks), ranks[0].of_the_node
        if own and threads > len(own):
            each = ranks[0].threads or 1
            seen = f"{len(ranks)} rank(s) x {each} thread(s) on {len(own)} core(s)"
            yield Evidence(seen, "reduce --ranks-per-node or --threads", _where(host, world), world.cost)
            return  # the first host is sufficient, since all hosts have the same placement


@RULES.rule(
    "HD046",
    "Ranks are not bound to their cores",
    severity="warning",
    why="The kernel moves ranks between cores and NUMA nodes. Times vary, and ranks may be far from their NIC or GPU.",
)
def unbound(world: World) -> Iterator[Evidence]:
    """Report a warning if a rank has a different number of cores than its placement."""
    if world.cores_per_rank is None:
        return
    wrong = [rank for rank in world.ranks if rank.cores and len(rank.cores) != world.cores_per_rank]
    if wrong:
        listed = ", ".join(f"rank {rank.rank} has {len(rank.cores)} core(s)" for rank in wrong[:_NAMED])
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        fix = "use a --launcher that binds; for srun, set TaskPlugin=task/affinity in slurm.conf"
        if all(len(rank.cores) < world.cores_per_rank == rank.cpus for rank in wrong):
            more += f", because hardware threads were counted as cores: each has {world.cores_per_rank}"
            fix = (
                "set threads_per_core of the node type in the site file, or use srun --threads-per-core=1 "
                "(I_MPI_PIN_CELL=core for Intel MPI)"
            )
        yield Evidence(f"{listed}{more} (requested: {world.cores_per_rank})", fix, world.launch, world.cost)


@RULES.rule(
    "HD047",
    "Ranks are bound to the same core",
    severity="warning",
    why="Ranks that share a core take turns, and each message waits for the next turn. Programs run a hundred times "
    "slower, without any error.",
)
def same_core(world: World) -> Iterator[Evidence]:
    """Report a warning if bound ranks of a host share cores."""
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
                "if srun binds: --tune MV2_ENABLE_AFFINITY=0"
            )
            yield Evidence(listed, fix, _where(host, world), world.cost)
            return


@RULES.rule(
    "HD009",
    "Ranks have different versions of the MPI library",
    severity="error",
    why="The protocol between ranks depends on the version of the MPI library. Ranks hang or misinterpret messages of "
    "other ranks.",
)
def different_libraries(world: World) -> Iterator[Evidence]:
    """Report an error if the version of the MPI library differs between ranks."""
    versions = Counter(rank.version for rank in world.ranks if rank.version)
    for version, _ in versions.most_common()[1:]:
        hosts = sorted({rank.host for rank in world.ranks if rank.version == version})
        seen = f"{version} on {', '.join(hosts[:_NAMED])}, but {versions.most_common()[0][0]} on other nodes"
        yield Evidence(seen, "install the same version on all nodes, or exclude these (--exclude)", world.launch)


def are_singletons(world: World) -> bool:
    """Return whether each rank is alone although several were requested and the launcher did not start just one."""
    alone = (rank.size == 1 and rank.told_size != 1 for rank in world.ranks)
    return (world.expected or 1) > 1 and bool(world.ranks) and all(alone)


def _is_bound(rank: Rank, world: World) -> bool:
    """Return whether a rank is restricted to fewer cores than its node has, or to the requested number."""
    if world.cores_per_rank is not None:
        return len(rank.cores) <= world.cores_per_rank
    return bool(rank.of_the_node) and rank.cores < rank.of_the_node


def _other_launch(world: World) -> str:
    if world.instead:
        return f"use a launcher that works: {', '.join(world.instead)}"
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

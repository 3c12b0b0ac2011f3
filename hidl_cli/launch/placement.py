"""Placement: how many ranks run where, with how many threads, and bound to what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hidl_cli import batch_systems
from hidl_cli.batch_systems import SSH
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.inputs.check import PATTERN_OF_TIMES
from hidl_cli.launch.hosts import WITHOUT_HOSTS, Hosts, parse_hosts
from hidl_cli.site.schema import NodeType, Partition, Policies, Site

_UNKNOWN = 30 * 86400.0
_HOUR = 3600.0
_TIMES = "Slurm's forms: 90 (minutes), 15:00 (minutes:seconds), 02:00:00, 1-12 (days-hours) or 1-12:30:00"


def check_nodes(site: Site, name: str | None, nodes: int) -> None:
    """Raise ``UsageError`` for an unknown partition, ``SubmitRefused`` if it does not allow so many nodes."""
    if name is not None and name not in site.partitions:
        known = ", ".join(site.partitions) or "none"
        raise UsageError(f"site {site.name} has no partition {name!r}", hint=f"its partitions: {known}")
    partition = site.partition(name)
    if partition is None:
        return
    if nodes < partition.min_nodes or (partition.max_nodes is not None and nodes > partition.max_nodes):
        raise SubmitRefused(
            f"{_nodes(nodes)} requested; partition {name or site.default_partition} of site {site.name} "
            f"allows {_allowed(partition)} in a job",
            hint=_elsewhere(site, nodes) or "request fewer nodes, or more ranks per node (--ranks-per-node)",
        )


def longest(partition: Partition | None, nodes: int) -> float | None:
    """Return the longest run time of a job of ``nodes`` nodes, in seconds; None if unknown."""
    if partition is None:
        return None
    for limit in partition.max_wall_by_nodes:
        if limit.max_nodes is None or nodes <= limit.max_nodes:
            return seconds(limit.max_wall)
    return None if partition.max_wall is None else seconds(partition.max_wall)


def longest_job(site: Site) -> float:
    """Return the longest run time of any job of the site, in seconds: 0 without a queue, 30 days if unknown."""
    if not _has_time_limits(site):
        return 0.0
    found = [
        [*filter(None, [partition.max_wall]), *(limit.max_wall for limit in partition.max_wall_by_nodes)]
        for partition in site.partitions.values()
    ]
    return max((seconds(text) for texts in found for text in texts), default=_UNKNOWN) if all(found) else _UNKNOWN


def time_limit(site: Site, name: str | None, nodes: int, asked: float | None) -> float | None:
    """Return the time limit of a job in seconds: as requested, else the site's default, else an hour or the maximum.

    None if none is requested and nobody else waits: on this machine and on hosts without a queue. Raises
    ``SubmitRefused`` if more is requested than the partition allows.
    """
    most = longest(site.partition(name), nodes)
    if asked is not None and most is not None and asked > most:
        raise SubmitRefused(
            f"{clock(asked)} requested; partition {name or site.default_partition} of site {site.name} allows "
            f"{clock(most)} for a job of {nodes} node(s)",
            hint=f"--time {clock(most)} or less, or another partition (hidl site show {site.name})",
        )
    if asked is not None or not _has_time_limits(site):
        return asked
    if site.policies.default_time is not None:
        return seconds(site.policies.default_time)
    return _HOUR if most is None else min(_HOUR, most)


def _allowed(partition: Partition) -> str:
    """Describe how many nodes a job may have."""
    fewest, most = partition.min_nodes, partition.max_nodes
    if most is None:
        return f"{_nodes(fewest)} or more"
    return f"{fewest} to {_nodes(most)}" if fewest < most else _nodes(most)


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _has_time_limits(site: Site) -> bool:
    system = batch_systems.system(site.scheduler)
    return system is not None and system.time_limits


def seconds(text: str) -> float:
    """Read a time in one of Slurm's forms (sbatch(1), ``--time``), so that ``10`` is ten minutes.

    ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes`` or
    ``days-hours:minutes:seconds``. ``UsageError`` for anything else.
    """
    if not re.fullmatch(PATTERN_OF_TIMES, text):
        raise UsageError(f"invalid time {text!r}", hint=_TIMES)
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, secs = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:
        hours, minutes, secs = [0, *parts, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)


def limit_from(text: str) -> float:
    """Return the time limit that ``--time`` requests, in seconds; ``UsageError`` for an invalid one, and for none."""
    if (limit := seconds(text)) == 0:
        raise UsageError("the time limit must be positive", hint=_TIMES)
    return limit


def clock(seconds: float) -> str:
    """Format a time as ``hours:minutes:seconds``; hours may exceed 24."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _elsewhere(site: Site, nodes: int) -> str | None:
    """A hint with the partitions that allow a job of ``nodes`` nodes."""
    fitting = [
        name
        for name, partition in site.partitions.items()
        if partition.min_nodes <= nodes and (partition.max_nodes is None or nodes <= partition.max_nodes)
    ]
    return f"these partitions allow it: {', '.join(fitting)} (--partition)" if fitting else None


#: Variables that tell the usual libraries how many threads a rank may use.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@dataclass(frozen=True)
class Topology:
    """The cores of a node, by the numbers that its operating system gives their first hardware threads.

    ``cores``: those that jobs may use, without ``reserved`` ones; None: unknown. ``sockets`` is 1 if their number or
    their sizes are unknown (``knows_sockets``).
    """

    cores: int | None = None
    sockets: int = 1
    threads_per_core: int = 1
    reserved: tuple[int, ...] = ()
    knows_sockets: bool = True

    @classmethod
    def of(cls, node: NodeType) -> Topology:
        """Return the topology of a site's node type; one socket and one thread per core where these are unknown."""
        return cls(
            node.cores,
            node.sockets or 1,
            node.threads_per_core or 1,
            tuple(node.reserved_cores),
            knows_sockets=node.sockets is not None,
        )

    @property
    def numbers_by_socket(self) -> list[list[int]]:
        """The usable cores of each socket; empty if unknown, or if the cores do not divide evenly among sockets."""
        installed = (self.cores or 0) + len(self.reserved)
        each, rest = divmod(installed, self.sockets)
        if self.cores is None or rest:
            return []
        sockets = (range(first, first + each) for first in range(0, installed, each))
        return [[core for core in socket if core not in self.reserved] for socket in sockets]

    def fits_in_sockets(self, ranks: int, threads: int) -> bool:
        """Return whether so many ranks have room without one that straddles sockets."""
        return ranks <= sum(len(socket) // threads for socket in self.numbers_by_socket)

    def in_a_row(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank if all take theirs in a row, across sockets; empty if there are too few."""
        cores = [core for socket in self.numbers_by_socket for core in socket]
        if ranks * threads > len(cores):
            return []
        return [tuple(cores[first : first + threads]) for first in range(0, ranks * threads, threads)]

    def places(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank; the last ones straddle sockets if they must. Empty if unknown."""
        sockets = self.numbers_by_socket
        whole = [
            tuple(socket[first : first + threads])
            for socket in sockets
            for first in range(0, len(socket) - threads + 1, threads)
        ]
        rest = [core for socket in sockets for core in socket[len(socket) // threads * threads :]]
        straddling = [tuple(rest[first : first + threads]) for first in range(0, len(rest) - threads + 1, threads)]
        found = [*whole, *straddling]
        return found[:ranks] if ranks <= len(found) else []


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as launchers and ``taskset`` read them: ``16-23,40-47``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@dataclass(frozen=True)
class Placement:
    """``nodes`` x ``ranks_per_node`` ranks of ``threads_per_rank`` threads.

    ``bind``: each rank is bound to as many cores of its own as it has threads; False if the node has too few.
    ``fills_node``: a rank has all cores of its node. ``ranks`` is less than the product if the last node is not full.
    ``node``: the cores of each node.
    """

    nodes: int
    ranks_per_node: int
    ranks: int
    threads_per_rank: int = 1
    bind: bool = False
    fills_node: bool = False
    node: Topology = Topology()

    @classmethod
    def of_nodes(cls, nodes: int, ranks_per_node: int) -> Placement:
        """``nodes`` full nodes."""
        return cls(nodes, ranks_per_node, nodes * ranks_per_node)

    @classmethod
    def of_ranks(cls, ranks: int, ranks_per_node: int | None) -> Placement:
        """``ranks`` on as few nodes as possible, ``ranks_per_node`` on each (None: all on one node)."""
        per_node = min(ranks, ranks_per_node or ranks)
        return cls(-(-ranks // per_node), per_node, ranks)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The cores of each rank of a full node; empty if unknown."""
        return self.node.places(self.ranks_per_node, self.threads_per_rank)

    @property
    def straddles_in_a_row(self) -> bool:
        """Return whether ranks that take cores in a row straddle sockets, although all have room within them."""
        ranks, threads = self.ranks_per_node, self.threads_per_rank
        return self.node.fits_in_sockets(ranks, threads) and self.places != self.node.in_a_row(ranks, threads)

    def environment(self) -> dict[str, str]:
        """The variables that limit libraries to ``threads_per_rank`` threads."""
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads_per_rank))
        return {**threads, "TF_NUM_INTEROP_THREADS": "1"}


def bind_to_cores(
    site: Site,
    placements: Sequence[Placement],
    *,
    partition: str | None = None,
    threads: int | None = None,
) -> list[Placement]:
    """Give the ranks of each placement threads, and cores of the site's nodes, in the same order.

    All get the same number of threads per rank (``threads``, or the cores of a node divided among the ranks of the
    fullest one), so the steps of a study differ only in their number of ranks. Raises ``UsageError`` for an unknown
    partition, and ``SubmitRefused`` if the largest placement, whose job the others share, exceeds its limits.
    """
    check_nodes(site, partition, max(placement.nodes for placement in placements))
    node = Topology.of(site.node_type(partition))
    cores = node.cores
    fullest = max(placement.ranks_per_node for placement in placements)
    per_rank = threads or max(1, (cores or fullest) // fullest)
    bind = cores is not None and fullest * per_rank <= cores
    return [
        replace(placement, threads_per_rank=per_rank, bind=bind, fills_node=per_rank == cores, node=node)
        for placement in placements
    ]


# The allocation that is requested from a scheduler: one for all steps of a run.


@dataclass(frozen=True)
class Asked:
    """What the user requests beside nodes and ranks; None: not requested. ``time_limit`` in seconds.

    ``hosts`` take the place of the site's scheduler (``on_hosts``); ``share_hosts``: without waiting for other runs.
    ``gpus``: whether GPUs are requested where the nodes have some.
    """

    partition: str | None = None
    time_limit: float | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    hosts: Hosts | None = None
    share_hosts: bool = False
    gpus: bool = True


@dataclass(frozen=True)
class Allocation:
    """``nodes`` whole or shared nodes for ``time_limit`` seconds; None: the scheduler's default.

    ``queue`` is the scheduler's own name of the partition or queue; None: not named. ``memory_gib`` and
    ``gpus_per_node`` are per node. ``cores_per_node`` is what the largest step uses of a node, if steps differ in their
    threads; ``cores_per_rank`` is None then. ``hosts``: those to run on, if no scheduler chooses them;
    ``share_hosts``: without waiting for other runs there. Options that the site's policies refuse are left out; the
    forms (``--gres`` or ``--gpus-per-node``, ...) are up to the scheduler's module.
    """

    job_name: str
    nodes: int
    ranks_per_node: int
    cores_per_rank: int | None = None
    threads_per_core: int | None = None
    gpus_per_node: int | None = None
    memory_gib: float | None = None
    time_limit: float | None = None
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    hosts: tuple[str, ...] = ()
    share_hosts: bool = False
    cores_per_node: int | None = None


def allocate(site: Site, job_name: str, placements: Sequence[Placement], asked: Asked) -> Allocation:
    """Return the allocation that holds all placements, by the site's partitions and policies.

    Raises ``UsageError`` for an option that the site refuses, ``SubmitRefused`` if a limit is exceeded.
    """
    policies, partition = site.policies, site.partition(asked.partition)
    nodes = max(placement.nodes for placement in placements)
    fullest = max(placement.ranks_per_node for placement in placements)
    qos = asked.qos or (partition.qos if partition else None)
    constraint = asked.constraint or (partition.constraint if partition else None)
    queue = (partition.queue or asked.partition or site.default_partition) if partition else None
    node = site.node_type(asked.partition)
    threads = placements[0].threads_per_rank if placements[0].bind else None
    most = max(
        placement.ranks_per_node * placement.threads_per_rank if placement.bind else node.cores or 0
        for placement in placements
    )
    differ = len({(placement.threads_per_rank, placement.bind) for placement in placements}) > 1
    allocation = Allocation(
        job_name=job_name,
        nodes=nodes,
        ranks_per_node=fullest,
        cores_per_rank=None if differ else threads,
        threads_per_core=node.threads_per_core,
        gpus_per_node=requested_gpus(site, asked) or None,
        memory_gib=node.memory_gib,
        time_limit=time_limit(site, asked.partition, nodes, asked.time_limit),
        queue=None if policies.partition == "never" else queue,
        account=asked.account,
        qos=None if policies.qos == "never" and not asked.qos else qos,
        constraint=None if policies.constraint == "never" and not asked.constraint else constraint,
        reservation=asked.reservation,
        hosts=_hosts(site, asked, nodes) if site.scheduler == SSH else (),
        share_hosts=asked.share_hosts and site.scheduler == SSH,
        cores_per_node=(most or None) if differ else None,
    )
    for option in ("account", "qos", "constraint", "reservation"):
        if getattr(policies, option) == "never" and getattr(allocation, option) is not None:
            raise UsageError(f"site {site.name} does not accept --{option}", hint="leave it out")
    return allocation


def requested_gpus(site: Site, asked: Asked) -> int | None:
    """Return the GPUs that are requested of each node: 0 if none is, None if the nodes' number is unknown."""
    return site.node_type(asked.partition).gpus if asked.gpus else 0


def _hosts(site: Site, asked: Asked, nodes: int) -> tuple[str, ...]:
    """Return the first ``nodes`` hosts of those requested, else of those in the site's file."""
    expression = site.node_type(asked.partition).hosts
    hosts = asked.hosts or (parse_hosts(expression) if expression else None)
    if hosts is None:
        raise UsageError(
            f"site {site.name} has no queue, and {WITHOUT_HOSTS}",
            hint="--hosts gpu11,gpu12 or --hostfile FILE; or `hosts` of the node type in the site's file",
        )
    if len(hosts.names) < nodes:
        raise UsageError(
            f"{nodes} nodes requested; {len(hosts.names)} host(s) named: {', '.join(hosts.names[:8])}",
            hint="fewer nodes, or more hosts (--hosts, --hostfile)",
        )
    return hosts.names[:nodes]


def missing(policies: Policies, allocation: Allocation) -> list[str]:
    """Return the options that the site requires and the allocation lacks."""
    required = [
        name for name in ("account", "qos", "constraint", "reservation") if getattr(policies, name) == "required"
    ]
    found = [f"--{name}" for name in required if getattr(allocation, name) is None]
    return [*found, "--partition"] if policies.partition == "required" and allocation.queue is None else found

"""Place ranks on nodes and cores, and determine the allocation that they require."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hidl_cli import batch_systems
from hidl_cli.batch_systems import SSH
from hidl_cli.errors import SubmitRefused, UsageError
from hidl_cli.launch.hosts import WITHOUT_HOSTS, parse_hosts
from hidl_cli.launch.options import AllocationOptions, JobOptions, clock, seconds
from hidl_cli.site.directives import THREAD_VARIABLES
from hidl_cli.site.job_options import JobSettings, parse_licenses, parse_mail_types, plain, require_supported
from hidl_cli.site.schema import NodeType, Partition, Policies, Site

_UNKNOWN = 30 * 86400.0
_HOUR = 3600.0


def check_nodes(site: Site, name: str | None, nodes: int) -> None:
    """Raise ``UsageError`` for an unknown partition, and ``SubmitRefused`` if it does not allow this many nodes."""
    if name is not None and name not in site.partitions:
        known = ", ".join(site.partitions) or "none"
        raise UsageError(f"site {site.name} has no partition {name!r}", hint=f"available partitions: {known}")
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
    """Return the maximum run time in seconds of a job with ``nodes`` nodes, or None if it is unknown."""
    if partition is None:
        return None
    for limit in partition.max_wall_by_nodes:
        if limit.max_nodes is None or nodes <= limit.max_nodes:
            return seconds(limit.max_wall)
    return None if partition.max_wall is None else seconds(partition.max_wall)


def longest_job(site: Site) -> float:
    """Return the maximum run time, in seconds, of any job at the site.

    It is 0 if the site has no time limits, and 30 days if a limit is unknown.
    """
    if not _has_time_limits(site):
        return 0.0
    found = [
        [*filter(None, [partition.max_wall]), *(limit.max_wall for limit in partition.max_wall_by_nodes)]
        for partition in site.partitions.values()
    ]
    return max((seconds(text) for texts in found for text in texts), default=_UNKNOWN) if all(found) else _UNKNOWN


def time_limit(site: Site, name: str | None, nodes: int, requested: float | None) -> float | None:
    """Return the time limit of a job in seconds.

    If no limit is requested, this is the site's default, or else an hour or the partition's maximum, whichever is less.
    The result is None if no limit is requested and the scheduler's jobs need none. Raises ``SubmitRefused`` if the
    requested limit exceeds the maximum.
    """
    most = longest(site.partition(name), nodes)
    if requested is not None and most is not None and requested > most:
        raise SubmitRefused(
            f"{clock(requested)} requested; partition {name or site.default_partition} of site {site.name} allows "
            f"{clock(most)} for a job of {nodes} node(s)",
            hint=f"use --time {clock(most)} or less, or another partition (hidl site show {site.name})",
        )
    if requested is not None or not _has_time_limits(site):
        return requested
    if site.policies.default_time is not None:
        return seconds(site.policies.default_time)
    return _HOUR if most is None else min(_HOUR, most)


def _allowed(partition: Partition) -> str:
    """Describe the number of nodes that a job may use."""
    fewest, most = partition.min_nodes, partition.max_nodes
    if most is None:
        return f"{_nodes(fewest)} or more"
    return f"{fewest} to {_nodes(most)}" if fewest < most else _nodes(most)


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _has_time_limits(site: Site) -> bool:
    system = batch_systems.system(site.scheduler)
    return system is not None and system.time_limits


def _elsewhere(site: Site, nodes: int) -> str | None:
    """Return a hint that lists the partitions in which a job may have ``nodes`` nodes, or None if there are none."""
    fitting = [
        name
        for name, partition in site.partitions.items()
        if partition.min_nodes <= nodes and (partition.max_nodes is None or nodes <= partition.max_nodes)
    ]
    return f"choose a partition that allows it: {', '.join(fitting)} (--partition)" if fitting else None


@dataclass(frozen=True)
class Topology:
    """The cores of a node. Each core has the number that the operating system gives to its first hardware thread.

    ``cores`` is the number of cores available to jobs, not counting ``reserved`` ones, or None if unknown. If the
    number of sockets is unknown, ``sockets`` is 1 and ``knows_sockets`` is False.
    """

    cores: int | None = None
    sockets: int = 1
    threads_per_core: int = 1
    reserved: tuple[int, ...] = ()
    knows_sockets: bool = True

    @classmethod
    def of(cls, node: NodeType) -> Topology:
        """Return the topology of a node type; unknown numbers of sockets and of threads per core default to one."""
        return cls(
            node.cores,
            node.sockets or 1,
            node.threads_per_core or 1,
            tuple(node.reserved_cores),
            knows_sockets=node.sockets is not None,
        )

    @property
    def numbers_by_socket(self) -> list[list[int]]:
        """The available cores of each socket, or none if they are unknown or not evenly divided among the sockets."""
        installed = (self.cores or 0) + len(self.reserved)
        each, rest = divmod(installed, self.sockets)
        if self.cores is None or rest:
            return []
        sockets = (range(first, first + each) for first in range(0, installed, each))
        return [[core for core in socket if core not in self.reserved] for socket in sockets]

    def fits_in_sockets(self, ranks: int, threads: int) -> bool:
        """Return whether the ranks fit on the node without straddling sockets."""
        return ranks <= sum(len(socket) // threads for socket in self.numbers_by_socket)

    def in_a_row(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank if cores are assigned consecutively, regardless of sockets.

        The list is empty if there are too few cores.
        """
        cores = [core for socket in self.numbers_by_socket for core in socket]
        if ranks * threads > len(cores):
            return []
        return [tuple(cores[first : first + threads]) for first in range(0, ranks * threads, threads)]

    def places(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank. The ranks that must straddle sockets come last.

        The list is empty if the cores are unknown or too few.
        """
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
    """Format ascending numbers for launchers and ``taskset``, such as ``16-23,40-47``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@dataclass(frozen=True)
class Placement:
    """A distribution of ranks: ``ranks_per_node`` ranks of ``threads_per_rank`` threads on each of ``nodes`` nodes.

    Attributes:
        ranks: Number of ranks, which is less than ``nodes * ranks_per_node`` if the last node is not full.
        bind: Whether each rank is bound to one core per thread; False if the node has too few cores.
        fills_node: Whether a single rank uses all cores of its node.
        node: The cores of each node.
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
        """Place ranks on ``nodes`` full nodes."""
        return cls(nodes, ranks_per_node, nodes * ranks_per_node)

    @classmethod
    def of_ranks(cls, ranks: int, ranks_per_node: int | None) -> Placement:
        """Place ``ranks`` on as few nodes as possible, with ``ranks_per_node`` on each (None puts all on one node)."""
        per_node = min(ranks, ranks_per_node or ranks)
        return cls(-(-ranks // per_node), per_node, ranks)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The cores of each rank on a full node, or none if they are unknown."""
        return self.node.places(self.ranks_per_node, self.threads_per_rank)

    @property
    def straddles_in_a_row(self) -> bool:
        """True if ranks with consecutive cores would straddle sockets, although all ranks fit within sockets."""
        ranks, threads = self.ranks_per_node, self.threads_per_rank
        return self.node.fits_in_sockets(ranks, threads) and self.places != self.node.in_a_row(ranks, threads)

    def environment(self) -> dict[str, str]:
        """Return the variables that limit libraries to ``threads_per_rank`` threads."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.threads_per_rank))
        return {**threads, "TF_NUM_INTEROP_THREADS": "1"}


def bind_to_cores(
    site: Site,
    placements: Sequence[Placement],
    *,
    partition: str | None = None,
    threads: int | None = None,
    share: float = 1.0,
) -> list[Placement]:
    """Assign threads and cores to the ranks of each placement, and return the placements in the same order.

    All placements get the same number of threads per rank, so the steps of a study differ only in their number of
    ranks. Raises ``UsageError`` for an unknown partition, and ``SubmitRefused`` if the partition does not allow as many
    nodes as the largest placement requires.

    Args:
        site: The site.
        placements: Placements of the ranks.
        partition: Partition of the job.
        threads: Threads per rank (default: a node's cores divided by the largest number of ranks per node).
        share: Part of each node whose cores are divided among the ranks by default.
    """
    check_nodes(site, partition, max(placement.nodes for placement in placements))
    node = Topology.of(site.node_type(partition))
    cores = node.cores
    fullest = max(placement.ranks_per_node for placement in placements)
    per_rank = threads or max(1, int((cores or fullest) * share) // fullest)
    bind = cores is not None and fullest * per_rank <= cores
    return [
        replace(placement, threads_per_rank=per_rank, bind=bind, fills_node=per_rank == cores, node=node)
        for placement in placements
    ]


# All steps of a run share one allocation.


@dataclass(frozen=True)
class Allocation:
    """An allocation of ``nodes`` nodes, whole or shared.

    Options that the site's policies forbid are left out. The scheduler's module chooses how to write each request
    (``--gres`` or ``--gpus-per-node``, for example).

    Attributes:
        cores_per_rank: Number of cores per rank, or None if the steps differ in their number of threads.
        gpus_per_node: GPUs to request per node.
        memory_gib: Memory per node.
        time_limit: Time limit in seconds; None selects the scheduler's default.
        queue: The scheduler's name for the partition or queue; None omits it.
        hosts: Hosts to run on if no scheduler chooses them.
        share_hosts: Whether to start without waiting for other runs on these hosts.
        stop_seconds: If the run has several jobs, the time at which each stops, in seconds before its time limit; None
            if the run has a single job.
        cores_per_node: Cores that the largest step uses per node; set if the steps differ in their number of threads.
        requests_memory: Whether to request ``memory_gib`` even if the site's policy does not.
        exclusive: Whether to request whole nodes; None follows the site's policy.
        share: Part of each node that the job uses, at most 1; a job that uses an unknown part counts as 1.
        settings: Additional job settings.
        least_nodes: Number of nodes with which the job may start if ``nodes`` are not available; None if it may not.
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
    stop_seconds: int | None = None
    requests_memory: bool = False
    exclusive: bool | None = None
    share: float = 1.0
    settings: JobSettings = field(default_factory=JobSettings)
    least_nodes: int | None = None

    def is_exclusive(self, policies: Policies) -> bool:
        """Return whether the job requests whole nodes."""
        return policies.exclusive if self.exclusive is None else self.exclusive


def allocate(site: Site, job_name: str, placements: Sequence[Placement], options: AllocationOptions) -> Allocation:
    """Return an allocation large enough for all placements, following the site's partitions and policies.

    Raises ``UsageError`` for an option that the site does not accept, and ``SubmitRefused`` if a limit is exceeded.
    """
    policies, partition = site.policies, site.partition(options.partition)
    job = options if isinstance(options, JobOptions) else JobOptions()
    require_supported(site, job.given_names)
    nodes = max(placement.nodes for placement in placements)
    fullest = max(placement.ranks_per_node for placement in placements)
    qos = options.qos or (partition.qos if partition else None)
    constraint = options.constraint or (partition.constraint if partition else None)
    queue = (partition.queue or options.partition or site.default_partition) if partition else None
    node = site.node_type(options.partition)
    threads = placements[0].threads_per_rank if placements[0].bind else None
    most = max(
        placement.ranks_per_node * placement.threads_per_rank if placement.bind else node.cores or 0
        for placement in placements
    )
    differ = len({(placement.threads_per_rank, placement.bind) for placement in placements}) > 1
    part = gpu_share(site, options)
    if part < 1 and job.exclusive:
        raise UsageError(
            "--exclusive cannot be combined with --gpus when --gpus requests only part of a node",
            hint="omit one of them",
        )
    if job.exclusive and job.share:
        raise UsageError("--exclusive and --share cannot be combined", hint="omit one of them")
    if part < 1 and (policies.exclusive or policies.cpus == "none") and not job.share:
        raise UsageError(
            f"site {site.name} allocates whole nodes: {job.gpus or job.gpus_per_rank} GPU(s) cannot be requested",
            hint="omit --gpus; if this partition shares its nodes, add --share",
        )
    if part < 1 and site.scheduler == "lsf":
        raise UsageError(
            "LSF allocates whole nodes: requesting only part of their GPUs is not supported", hint="omit --gpus"
        )
    memory = job.memory_gib
    if memory is not None and node.memory_gib is not None and memory > node.memory_gib:
        raise SubmitRefused(
            f"--mem {job.memory}: the nodes have {node.memory_gib:g} GiB",
            hint=f"use --mem {int(node.memory_gib)}G or less",
        )
    is_part = part < 1 or job.share
    # An unknown part counts as a whole node, because limits on the cost of a run are computed from it.
    cores_used = (fullest * threads if threads else most) / node.cores if node.cores else 1.0
    memory_used = 0.0 if memory is None else memory / node.memory_gib if node.memory_gib else 1.0
    gpus_used = 0.0 if not requested_gpus(site, options) else part if node.gpus else 1.0
    allocation = Allocation(
        job_name=plain("--job-name", job.job_name) or job_name,
        nodes=nodes,
        ranks_per_node=fullest,
        cores_per_rank=None if differ else threads,
        threads_per_core=node.threads_per_core,
        gpus_per_node=requested_gpus(site, options) or None,
        memory_gib=memory or (node.memory_gib and node.memory_gib * part),
        time_limit=time_limit(site, options.partition, nodes, options.time_limit),
        queue=None if policies.partition == "never" else queue,
        account=options.account,
        qos=None if policies.qos == "never" and not options.qos else qos,
        constraint=None if policies.constraint == "never" and not options.constraint else constraint,
        reservation=options.reservation,
        hosts=_hosts(site, options, nodes) if site.scheduler == SSH else (),
        share_hosts=options.share_hosts and site.scheduler == SSH,
        cores_per_node=(most or None) if differ else None,
        requests_memory=memory is not None or (part < 1 and policies.memory == "all"),
        exclusive=True if job.exclusive else False if is_part else None,
        share=min(1.0, max(gpus_used, cores_used, memory_used)) if is_part else 1.0,
        settings=JobSettings(
            licenses=parse_licenses(job.licenses) if job.licenses else None,
            mail_types=parse_mail_types(job.mail_type) if job.mail_type else (),
            mail_user=plain("--mail-user", job.mail_user),
            after=tuple(job.runs_before),
            hold=job.hold,
            begin=job.begin_time,
            comment=plain("--comment", job.comment),
            scheduler_options=tuple(job.scheduler_options or ()),
        ),
    )
    for name in ("account", "qos", "constraint", "reservation"):
        if getattr(policies, name) == "never" and getattr(allocation, name) is not None:
            raise UsageError(f"site {site.name} does not accept --{name}", hint=f"omit --{name}")
    return allocation


def requested_gpus(site: Site, options: AllocationOptions) -> int | None:
    """Return the number of GPUs to request per node, or None if all GPUs are requested and their number is unknown."""
    return site.node_type(options.partition).gpus if options.gpus_per_node is None else options.gpus_per_node


def gpu_share(site: Site, options: AllocationOptions) -> float:
    """Return the requested fraction of each node's GPUs.

    The result is 1 if all or no GPUs are requested, or if the number of GPUs is unknown.
    """
    available, requested = site.node_type(options.partition).gpus, requested_gpus(site, options)
    return requested / available if available and requested and requested < available else 1.0


def _hosts(site: Site, options: AllocationOptions, nodes: int) -> tuple[str, ...]:
    """Return the first ``nodes`` of the requested hosts, or else of the hosts listed in the site's file."""
    expression = site.node_type(options.partition).hosts
    hosts = options.named_hosts or (parse_hosts(expression) if expression else None)
    if hosts is None:
        raise UsageError(
            f"site {site.name} has no queue, and {WITHOUT_HOSTS}",
            hint="use --hosts gpu11,gpu12 or --hostfile FILE, or set `hosts` of the node type in the site's file",
        )
    if len(hosts.names) < nodes:
        raise UsageError(
            f"{nodes} nodes requested, but only {len(hosts.names)} host(s) named: {', '.join(hosts.names[:8])}",
            hint="request fewer nodes or name more hosts (--hosts, --hostfile)",
        )
    return hosts.names[:nodes]


def missing(policies: Policies, allocation: Allocation) -> list[str]:
    """Return the options that the site requires but the allocation lacks."""
    required = [
        name for name in ("account", "qos", "constraint", "reservation") if getattr(policies, name) == "required"
    ]
    found = [f"--{name}" for name in required if getattr(allocation, name) is None]
    return [*found, "--partition"] if policies.partition == "required" and allocation.queue is None else found

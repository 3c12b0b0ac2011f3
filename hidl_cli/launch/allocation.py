"""The allocation that is requested from a scheduler: one for all steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import UsageError
from hidl_cli.launch import limits
from hidl_cli.launch.hosts import WITHOUT_HOSTS, Hosts, parse_hosts
from hidl_cli.launch.placement import Placement
from hidl_cli.site.schema import Policies, Site


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
        time_limit=limits.time_limit(site, asked.partition, nodes, asked.time_limit),
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

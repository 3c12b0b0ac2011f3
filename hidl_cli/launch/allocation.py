"""What a scheduler is asked for: one allocation, in which all steps of a run take place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidl_cli.errors import UsageError
from hidl_cli.launch import limits
from hidl_cli.launch.placement import Placement
from hidl_cli.site.schema import Policies, Site


@dataclass(frozen=True)
class Asked:
    """What the user asks the scheduler for, beside nodes and ranks; None: nothing said. ``time_limit`` in seconds."""

    partition: str | None = None
    time_limit: float | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None


@dataclass(frozen=True)
class Allocation:
    """``nodes`` whole or shared nodes for ``time_limit`` seconds; None: not said, the scheduler's default holds.

    ``queue`` is the partition (Slurm) or queue (LSF) by the scheduler's own name; None: none is named.
    ``memory_gib`` and ``gpus_per_node`` are per node. What the site's policies refuse has been left out already, but
    for the forms (``--gres`` or ``--gpus-per-node``, ...), which the scheduler's module takes from the policies.
    """

    job_name: str
    nodes: int
    ranks_per_node: int
    cores_per_rank: int | None = None
    gpus_per_node: int | None = None
    memory_gib: float | None = None
    time_limit: float | None = None
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None


def allocate(site: Site, job_name: str, placements: Sequence[Placement], asked: Asked) -> Allocation:
    """The allocation that holds every one of the placements, by the site's partitions and policies.

    Raises ``UsageError`` for what the site refuses, ``SubmitRefused`` for what is beyond its limits.
    """
    policies, partition = site.policies, site.partition(asked.partition)
    nodes = max(placement.nodes for placement in placements)
    fullest = max(placement.ranks_per_node for placement in placements)
    qos = asked.qos or (partition.qos if partition else None)
    constraint = asked.constraint or (partition.constraint if partition else None)
    queue = (partition.queue or asked.partition or site.default_partition) if partition else None
    node = site.node_type(asked.partition)
    allocation = Allocation(
        job_name=job_name,
        nodes=nodes,
        ranks_per_node=fullest,
        cores_per_rank=placements[0].threads_per_rank if placements[0].bind else None,
        gpus_per_node=node.gpus or None,
        memory_gib=node.memory_gib,
        time_limit=limits.time_limit(site, asked.partition, nodes, asked.time_limit),
        queue=None if policies.partition == "never" else queue,
        account=asked.account,
        qos=None if policies.qos == "never" and not asked.qos else qos,
        constraint=None if policies.constraint == "never" and not asked.constraint else constraint,
        reservation=asked.reservation,
    )
    for option in ("account", "qos", "constraint", "reservation"):
        if getattr(policies, option) == "never" and getattr(allocation, option) is not None:
            raise UsageError(f"site {site.name} admits no --{option}", hint="leave it out")
    return allocation


def missing(policies: Policies, allocation: Allocation) -> list[str]:
    """The options that the site demands, and that the allocation does not carry."""
    demanded = [
        name for name in ("account", "qos", "constraint", "reservation") if getattr(policies, name) == "required"
    ]
    found = [f"--{name}" for name in demanded if getattr(allocation, name) is None]
    return [*found, "--partition"] if policies.partition == "required" and allocation.queue is None else found

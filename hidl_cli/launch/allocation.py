"""What a scheduler is asked for: one allocation, in which all steps of a run take place."""

from __future__ import annotations

from dataclasses import dataclass


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

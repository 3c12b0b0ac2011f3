"""The maximum cost of a run: its node-hours times the site's charge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hidl_cli.launch import limits
from hidl_cli.site.schema import Partition

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan


@dataclass(frozen=True)
class Estimate:
    """``node_hours`` = ``nodes`` x ``seconds`` / 3600, an upper bound: the job may end before its time limit.

    ``cost`` = ``node_hours`` x ``charge``, in the site's units (node-hours if it charges 1). None: unknown.
    ``max_nodes`` and ``max_seconds`` are the partition's limits for a job of this size.
    """

    nodes: int
    seconds: float | None
    node_hours: float | None
    charge: float | None
    cost: float | None
    min_nodes: int | None
    max_nodes: int | None
    max_seconds: float | None


def estimate(plan: Plan, partition: Partition | None) -> Estimate:
    """Estimate the cost of a plan."""
    nodes, seconds = plan.allocation.nodes, plan.allocation.time_limit
    node_hours = None if seconds is None else nodes * seconds / 3600
    return Estimate(
        nodes=nodes,
        seconds=seconds,
        node_hours=node_hours,
        charge=plan.charge,
        cost=None if node_hours is None or plan.charge is None else node_hours * plan.charge,
        min_nodes=partition.min_nodes if partition else None,
        max_nodes=partition.max_nodes if partition else None,
        max_seconds=limits.longest(partition, nodes),
    )


def format_estimate(estimate: Estimate, plan: Plan) -> list[str]:
    """Format the estimate in lines for people."""
    where = f"partition {plan.partition} of site {plan.site}" if plan.partition else f"site {plan.site}"
    if estimate.seconds is None or estimate.node_hours is None:
        lines = [f"{where}: {estimate.nodes} node(s), without a time limit (--time): no upper bound"]
    else:
        most = limits.clock(estimate.seconds)
        lines = [f"{where}: {estimate.nodes} node(s) for {most} at most = {estimate.node_hours:g} node-hours at most"]
    if estimate.charge is None:
        lines.append("cost: unknown: the site's file gives no charge for this partition")
    elif estimate.cost is not None:
        lines.append(f"cost: {estimate.charge:g} a node-hour = {estimate.cost:g} of the site's units at most")
    nodes = f"{estimate.min_nodes or 1} to {estimate.max_nodes or '(unknown)'} nodes"
    wall = "an unknown time" if estimate.max_seconds is None else limits.clock(estimate.max_seconds)
    lines.append(f"limits: {nodes}, {wall} for a job of this size: allowed")
    return lines

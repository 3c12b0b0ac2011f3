"""Estimate and limit the cost of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hidl_cli import batch_systems
from hidl_cli.errors import UsageError
from hidl_cli.launch import placement as limits
from hidl_cli.launch.options import clock
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.site.schema import Partition

#: Largest relative rounding error of what a job uses. A limit is not exceeded by less.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """Upper bounds on the cost of a run, which may end before its time limit. None means unknown.

    ``charge`` is the price of a node-hour and ``cost`` the total price, both in the site's units. The minima and maxima
    are the partition's limits for a job of this size.

    Attributes:
        jobs: Maximum number of jobs.
        seconds: Time limit of a job at the scheduler.
        node_hours: Node-hours of all jobs.
    """

    nodes: int
    jobs: int
    seconds: float | None
    node_hours: float | None
    charge: float | None
    cost: float | None
    min_nodes: int | None
    max_nodes: int | None
    max_seconds: float | None


@dataclass(frozen=True)
class CostLimit:
    """A limit on the total usage of all jobs of a run.

    Attributes:
        option: Option that sets the limit.
        most: The limit.
        per_second: What a job uses per second.
        unit: Unit of both.
    """

    option: str
    most: float
    per_second: float
    unit: str

    def allows(self, seconds: float) -> bool:
        """Return whether jobs of ``seconds`` in total stay within the limit."""
        return self.per_second * seconds <= self.most * (1 + ROUNDING)


def limit_at_scheduler(plan: Plan) -> float | None:
    """Return the time limit of a job in seconds as its scheduler rounds it up, or None if the job has none."""
    limit, system = plan.allocation.time_limit, batch_systems.system(plan.scheduler)
    return limit if limit is None or system is None else float(system.round_limit(limit))


def cost_limits(plan: Plan) -> Iterator[CostLimit]:
    """Yield the limits of a plan."""
    per_second = _nodes_charged(plan) / 3600
    if plan.max_node_hours is not None:
        yield CostLimit("--max-node-hours", plan.max_node_hours, per_second, "node-hours")
    if plan.max_cost is not None and plan.charge is not None:
        yield CostLimit("--max-cost", plan.max_cost, per_second * plan.charge, "of the site's units")


def limit_cost(plan: Plan, max_node_hours: float | None, max_cost: float | None) -> Plan:
    """Return a plan whose jobs do not exceed the limits. None means that there is no limit.

    Raises ``UsageError`` if a limit is not finite, the cost of a job is unknown, or a single job could exceed a limit.
    """
    if max_node_hours is None and max_cost is None:
        return plan
    for option, most in (("--max-node-hours", max_node_hours), ("--max-cost", max_cost)):
        if most is not None and not math.isfinite(most):
            raise UsageError(f"invalid {option} {most:g}: must be finite", hint="omit it for no limit")
    seconds = limit_at_scheduler(plan)
    if seconds is None:
        option = "--max-cost" if max_node_hours is None else "--max-node-hours"
        raise UsageError(f"{option} requires a time limit for each job", hint="add --time")
    if max_cost is not None and plan.charge is None:
        where = f"partition {plan.partition}" if plan.partition else f"site {plan.site}"
        raise UsageError(
            f"--max-cost requires a charge, which the site's file does not specify for {where}",
            hint="set `charge` in the site's file, or use --max-node-hours",
        )
    limited = replace(plan, max_node_hours=max_node_hours, max_cost=max_cost)
    for each in cost_limits(limited):
        if not each.allows(seconds):
            raise UsageError(
                f"{each.option} {each.most:g}: a single job may use {each.per_second * seconds:.4g} {each.unit}",
                hint="request less --time or fewer --nodes, or raise the limit",
            )
    return limited


def estimate(plan: Plan, partition: Partition | None) -> Estimate:
    """Estimate the cost of a plan."""
    nodes, seconds, jobs = plan.allocation.nodes, limit_at_scheduler(plan), plan.max_jobs or 1
    node_hours = None if seconds is None else jobs * _nodes_charged(plan) * seconds / 3600
    cost = None if node_hours is None or plan.charge is None else node_hours * plan.charge
    if node_hours is not None and plan.max_node_hours is not None:
        node_hours = min(node_hours, plan.max_node_hours)
    if cost is not None and plan.max_cost is not None:
        cost = min(cost, plan.max_cost)
    if plan.charge and node_hours is not None and cost is not None:  # a limit on one also limits the other
        node_hours, cost = min(node_hours, cost / plan.charge), min(cost, node_hours * plan.charge)
    return Estimate(
        nodes=nodes,
        jobs=jobs,
        seconds=seconds,
        node_hours=node_hours,
        charge=plan.charge,
        cost=cost,
        min_nodes=partition.min_nodes if partition else None,
        max_nodes=partition.max_nodes if partition else None,
        max_seconds=limits.longest(partition, nodes),
    )


def format_estimate(estimate: Estimate, plan: Plan) -> list[str]:
    """Format the estimate as text."""
    where = f"partition {plan.partition} of site {plan.site}" if plan.partition else f"site {plan.site}"
    if estimate.seconds is None or estimate.node_hours is None:
        lines = [f"{where}: {estimate.nodes} node(s), without a time limit (--time): no upper bound"]
    else:
        most = clock(estimate.seconds)
        part, least = plan.allocation.share, plan.allocation.least_nodes
        nodes = f"{least} to {estimate.nodes} node(s)" if least else f"{estimate.nodes} node(s)"
        used = nodes if part == 1 else f"{part:.3g} of {nodes}"
        used = f"{used} for at most {most}"
        if estimate.jobs > 1:
            used = f"at most {estimate.jobs} jobs on {used} each"
        lines = [f"{where}: {used} = at most {estimate.node_hours:g} node-hours"]
        limited = [f"{each.option} {each.most:g}" for each in cost_limits(plan)]
        if limited:
            lines[0] += f" ({', '.join(limited)})"
    if estimate.charge is None:
        lines.append("cost: unknown, because the site's file does not specify a charge for this partition")
    elif estimate.cost is not None:
        lines.append(f"cost: {estimate.charge:g} per node-hour = at most {estimate.cost:g} of the site's units")
    nodes = f"{estimate.min_nodes or 1} to {estimate.max_nodes or '(unknown)'} nodes"
    wall = "an unknown time" if estimate.max_seconds is None else clock(estimate.max_seconds)
    lines.append(f"limits: {nodes}, {wall} for a job of this size: allowed")
    return lines


def _nodes_charged(plan: Plan) -> float:
    """Return the number of nodes that a job is charged for, which is less than one for a part of a node."""
    return plan.allocation.nodes * plan.allocation.share

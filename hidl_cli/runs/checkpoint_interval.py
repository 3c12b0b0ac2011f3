"""The interval between two checkpoints, from what a checkpoint costs and how often a job fails."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record import Run
from hidl_cli.site.schema import Site
from hidl_cli.store.store import Filters, Store

#: Variable with the interval in seconds, as in ``hidl_workloads.checkpoint``.
INTERVAL = "HIDL_CHECKPOINT_INTERVAL"

#: Smallest and largest interval in seconds. An hour is the most that a failure costs, whatever the failure rate.
SHORTEST, LONGEST = 10.0, 3600.0

#: Parameters that only change how long a program trains, and not its checkpoints.
_OF_LENGTH = ("steps", "warmup")
#: Number of earlier runs to look at.
_RUNS = 50


@dataclass(frozen=True)
class CheckpointInterval:
    """The checkpoint interval of a run.

    Attributes:
        seconds: The interval; None if hidl leaves it to the program.
        reason: Values that it was computed from, or the reason why it was not computed.
        checkpoint_seconds: Time of a checkpoint; None if unknown.
        time_between_failures: Mean time between two failures of a job, in seconds; None if unknown.
    """

    seconds: float | None
    reason: str
    checkpoint_seconds: float | None = None
    time_between_failures: float | None = None

    def describe(self) -> str:
        """Describe the interval in one line."""
        interval = "the program's own" if self.seconds is None else f"{self.seconds:g} s"
        return f"checkpoint interval: {interval}, {self.reason}"


def optimal_interval(checkpoint_seconds: float, time_between_failures: float) -> float:
    """Return the time of computation between two checkpoints, in seconds, that minimizes the run time of a job.

    This is the estimate of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (2006) 303-312, for failures that are independent of each other. Its first
    factor is Young's formula (1974). If a checkpoint takes longer than twice ``time_between_failures``, the interval
    is ``time_between_failures``.

    Args:
        checkpoint_seconds: Time of a checkpoint.
        time_between_failures: Mean time between two failures of the job, not of a node.
    """
    ratio = checkpoint_seconds / (2 * time_between_failures)
    if ratio >= 1:
        return time_between_failures
    young = math.sqrt(2 * checkpoint_seconds * time_between_failures)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def choose_interval(plan: Plan, site: Site) -> CheckpointInterval | None:
    """Return the checkpoint interval of a plan, or None if its run is a single job."""
    if not plan.max_jobs:
        return None
    for variables in (plan.environment, os.environ):
        if value := variables.get(INTERVAL):
            return CheckpointInterval(None, f"{INTERVAL}={value}")
    found = next(_earlier(plan), None)
    if found is None:
        return CheckpointInterval(None, "because no earlier run with these parameters measured its checkpoints")
    run, metrics = found
    cost = metrics["checkpoint_time"]["value"]
    node_type, nodes = site.node_type(plan.partition), plan.allocation.nodes
    if node_type.mtbf_hours is not None:
        between = node_type.mtbf_hours * 3600 / nodes
        source = f"{node_type.mtbf_hours:g} h between failures of a node (site's file), {nodes} node(s)"
    elif "time_between_failures" in metrics:
        between = metrics["time_between_failures"]["value"]
        source = f"{between / 3600:.3g} h between failures of a job (the same run)"
    else:
        reason = (
            f"because the failure rate is unknown: run {run} was not interrupted, and the site's file has no mtbf_hours"
        )
        return CheckpointInterval(None, reason, cost)
    if not (cost > 0 and between > 0):
        return CheckpointInterval(None, f"because run {run} measured {cost:g} s for a checkpoint", cost)
    best = optimal_interval(cost, between)
    seconds = float(round(min(max(best, SHORTEST), LONGEST)))
    bound = "" if SHORTEST <= best <= LONGEST else f", limited to {SHORTEST:g} to {LONGEST:g} s"
    reason = f"from {cost:.3g} s for a checkpoint (run {run}) and {source}{bound}"
    return CheckpointInterval(seconds, reason, cost, between)


def with_interval(plan: Plan, interval: CheckpointInterval | None) -> Plan:
    """Return the plan with the interval in its environment, unless the program chooses it."""
    if interval is None or interval.seconds is None:
        return plan
    return replace(plan, environment={**plan.environment, INTERVAL: f"{interval.seconds:g}"})


def _earlier(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield earlier runs of the same program on the same nodes and ranks, newest first, with their metrics."""
    wanted = Filters(workload=plan.workload.name, site=plan.site, partition=plan.partition, metric="checkpoint_time")
    try:
        candidates = Store().runs(wanted, limit=_RUNS)
    except HidlError:  # the program has a default
        return
    for each in candidates:
        with suppress(HidlError, LookupError, TypeError):  # the directory is gone, or of another version of hidl
            run = Run(Path(each.directory))
            metrics = (run.document("metrics") or {})["steps"][0]["metrics"]
            if _identity(plan_of(run)) == _identity(plan):
                float(metrics["checkpoint_time"]["value"])
                yield each.run, metrics


def _identity(plan: Plan) -> list[Any]:
    """Return what two runs must have in common for their checkpoints to take equally long."""
    parameters = {name: value for name, value in plan.parameters.items() if name not in _OF_LENGTH}
    first = plan.steps[0].placement
    return [plan.workload_words, parameters, plan.device, first.nodes, first.ranks]

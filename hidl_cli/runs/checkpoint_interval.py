"""The interval between two checkpoints, from what a checkpoint costs and how often a job fails."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hidl_cli.errors import HidlError, UsageError
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.record import Run
from hidl_cli.runs.goodput import count_failures
from hidl_cli.site.schema import Site
from hidl_cli.store.store import Filters, Store

#: Environment variable that contains the interval in seconds, which ``hidl_workloads.checkpoint`` reads.
INTERVAL = "HIDL_CHECKPOINT_INTERVAL"

#: Smallest interval in seconds.
SHORTEST = 10.0
#: Largest interval: in seconds, or in durations of a checkpoint if that is longer, so that checkpoints take at most 5 %
#: of the time. It limits what a failure costs if failures are more frequent than estimated.
LONGEST, LONGEST_CHECKPOINTS = 3600.0, 20.0

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
        checkpoint_time: Time of a checkpoint, in seconds; None if unknown.
        time_between_failures: Mean time between two failures of a job, in seconds; None if unknown.
    """

    seconds: float | None
    reason: str
    checkpoint_time: float | None = None
    time_between_failures: float | None = None

    def describe(self) -> str:
        """Describe the interval in one line."""
        interval = "the program's own" if self.seconds is None else f"{self.seconds:g} s"
        return f"checkpoint interval: {interval}, {self.reason}"


def optimal_interval(checkpoint_seconds: float, time_between_failures: float) -> float:
    """Return the computing time between two checkpoints, in seconds, that minimizes a job's run time.

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
    """Return the checkpoint interval of a plan, or None if its run is a single job.

    Raises ``UsageError`` if the user has set an invalid interval.
    """
    if not plan.max_jobs:
        return None
    given = plan.environment.get(INTERVAL)
    if given is None:
        given = os.environ.get(INTERVAL) or None
    if given is not None:
        return CheckpointInterval(_seconds(given) if given else None, f"{INTERVAL}={given}")
    earlier = list(_earlier(plan))
    if not earlier:
        return CheckpointInterval(None, "because no earlier run with these parameters measured its checkpoints")
    cost, run = earlier[0].checkpoint_time, earlier[0].run
    node_type, nodes = site.node_type(plan.partition), plan.allocation.nodes
    node_seconds, failures = sum(each.node_seconds for each in earlier), sum(each.failures for each in earlier)
    if node_type.mtbf_hours is not None:
        between = node_type.mtbf_hours * 3600 / nodes
        source = f"{node_type.mtbf_hours:g} h between failures of a node (site's file), {nodes} node(s)"
    elif failures and node_seconds:
        between = node_seconds / nodes / failures
        source = f"{between / 3600:.3g} h between failures of a job ({failures} in {len(earlier)} earlier run(s))"
    else:
        reason = (
            f"because the failure rate is unknown: no job of {len(earlier)} earlier run(s) failed, and the site's file "
            "has no mtbf_hours"
        )
        return CheckpointInterval(None, reason, cost)
    best, longest = optimal_interval(cost, between), max(LONGEST, LONGEST_CHECKPOINTS * cost)
    interval = float(round(min(max(best, SHORTEST), longest)))
    bound = "" if SHORTEST <= best <= longest else f", limited to {SHORTEST:g} to {longest:g} s"
    reason = f"from {cost:.3g} s for a checkpoint (run {run}) and {source}{bound}"
    return CheckpointInterval(interval, reason, cost, between)


def with_interval(plan: Plan, interval: CheckpointInterval | None) -> Plan:
    """Return the plan with the interval in its environment, unless it is the program's own."""
    if interval is None or interval.seconds is None:
        return plan
    return replace(plan, environment={**plan.environment, INTERVAL: f"{interval.seconds:.15g}"})


def _seconds(text: str) -> float:
    """Parse an interval as ``hidl_workloads.checkpoint`` does; raises ``UsageError`` if it is invalid."""
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise UsageError(
        f"invalid {INTERVAL} {text!r}: must be a number of at least 0",
        hint="set it to the seconds between two checkpoints, or unset it",
    )


@dataclass(frozen=True)
class _EarlierRun:
    """The measurements of an earlier run.

    Attributes:
        checkpoint_time: Time of a checkpoint in seconds.
        node_seconds: Time of all jobs, times their nodes.
        failures: Number of failures.
    """

    run: str
    checkpoint_time: float
    node_seconds: float
    failures: int


def _earlier(plan: Plan) -> Iterator[_EarlierRun]:
    """Yield earlier runs of the same program on the same nodes and ranks, newest first."""
    wanted = Filters(workload=plan.workload.name, site=plan.site, partition=plan.partition, metric="checkpoint_time")
    try:
        candidates = Store().runs(wanted, limit=_RUNS)
    except HidlError:  # the program has a default
        return
    for each in candidates:
        # The directory may be gone, damaged or of another version of hidl.
        with suppress(HidlError, OSError, LookupError, TypeError, ValueError):
            run = Run(Path(each.directory))
            metric = (run.document("metrics") or {})["steps"][0]["metrics"]["checkpoint_time"]
            planned, cost = plan_of(run), float(metric["value"])
            if _identity(planned) == _identity(plan) and metric["unit"] == "s" and 0 < cost < math.inf:
                yield _EarlierRun(each.run, cost, *count_failures(run, planned))


def _identity(plan: Plan) -> list[Any]:
    """Return what two runs must have in common for their checkpoints to take equally long."""
    parameters = {name: value for name, value in plan.parameters.items() if name not in _OF_LENGTH}
    steps = (*plan.steps, *plan.on_fewer_nodes)
    largest = max((step.placement for step in steps), key=lambda placement: placement.nodes)
    least = plan.allocation.least_nodes
    return [plan.workload_words, parameters, plan.device, largest.nodes, largest.ranks, least]

"""The bridge between hidl and ReFrame: hidl plans a run and determines its verdict; ReFrame submits it and waits.

A check's job starts the same script that ``hidl run`` would submit, with the same allocation. All repetitions of a
study therefore run in one allocation, with interleaved steps, and the verdict is computed by
``hidl_cli.analysis.scaling``, whereas ReFrame would compare a single number with a constant and ignore noise. The run
directory looks like any other run's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hidl_cli import batch_systems
from hidl_cli.batch_systems import SSH
from hidl_cli.errors import UsageError
from hidl_cli.launch.hosts import Hosts, on_hosts, parse_hosts
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.record import Run, State, Status
from hidl_cli.runs.conclude import Conclusion, conclude
from hidl_cli.runs.follow import Watch
from hidl_cli.schedulers import scheduler
from hidl_cli.schedulers.decision import read_status
from hidl_cli.schedulers.ssh import started_run
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack.schema import Device
from hidl_cli.validate.reframe import scale

_END_SECONDS = 60.0
#: Variable with the path of a file that lists a validation's runs, so that an interrupt can cancel them.
RUNS_FILE = "HIDL_VALIDATION_RUNS"


@dataclass(frozen=True)
class CheckLocation:
    """The site, partition and resources for checks, stored in the partition's ``extras`` in ReFrame's configuration.

    None selects hidl's default. ``hosts`` has the same form as ``--hosts``.
    """

    site: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    time_limit: float | None = None
    prefix: str | None = None
    device: Device | None = None
    hosts: str | None = None

    def load_site(self) -> Site:
        """Load the site, restricted to ``hosts`` if they are set."""
        return on_hosts(load_site(self.site), self._hosts)

    @property
    def _hosts(self) -> Hosts | None:
        return None if self.hosts is None else parse_hosts(self.hosts)

    @property
    def job(self) -> AllocationOptions:
        """The resources to request from the scheduler."""
        return AllocationOptions(
            partition=self.partition,
            time=self.time_limit,
            account=self.account,
            qos=self.qos,
            reservation=self.reservation,
            hosts=self._hosts,
        )

    def extras(self) -> dict[str, Any]:
        """Return a partition's ``extras`` in ReFrame's configuration."""
        return {f"hidl_{name}": value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> CheckLocation:
        """Parse a partition's ``extras``."""
        return cls(**{name: extras[f"hidl_{name}"] for name in cls.__dataclass_fields__ if f"hidl_{name}" in extras})


@dataclass(frozen=True)
class CheckRequest:
    """The run that a check requires.

    Attributes:
        workload: Name of the workload.
        scale: Name of the scale.
        study: Whether to run a scaling study up to ``scale``.
        assignments: Parameter values, as for ``--set``.
        repeat: Number of repetitions.
        target: Required efficiency.
        fill_nodes: Whether to use as many ranks per node as the scale ``1-node``.
        ranks_per_node: Number of ranks per node, which overrides the scale's number.
    """

    workload: str
    scale: str
    study: bool = False
    assignments: Sequence[str] = ()
    repeat: int | None = None
    target: float | None = None
    fill_nodes: bool = False
    ranks_per_node: int | None = None


def plan(location: CheckLocation, request: CheckRequest) -> Plan:
    """Plan a check's run.

    Raises:
        UsageError: If there is no smaller scale for a study.
        HidlError: If the run cannot be planned; see ``prepare``.
    """
    site = location.load_site()
    size = scale(site, location.partition, request.scale).with_overhead(load_workload(request.workload).overhead_ranks)
    if request.study and size.study is None:
        hint = "remove it from the scales of the study"
        raise UsageError(f"scale {request.scale} has no smaller scale to compare with", hint=hint)
    per_node = request.ranks_per_node or size.ranks_per_node
    if request.fill_nodes and size.nodes > 1:
        per_node = size.fullest
    return prepare(
        RunRequest(
            workload=request.workload,
            site=location.site,
            nodes=1 if request.study else size.nodes,
            ranks_per_node=per_node,
            parameters=request.assignments,
            scale=size.study if request.study else None,
            repeat=request.repeat,
            target=request.target,
            prefix=location.prefix,
            device=location.device,
            any_device=True,
            partition=location.job.partition,
            time=location.job.time,
            account=location.job.account,
            qos=location.job.qos,
            reservation=location.job.reservation,
            hosts=location.job.hosts,
            validates=True,
        )
    )


def begin(planned: Plan) -> Run:
    """Create the run directory, including the job script that the check's job will start."""
    run = create_run(planned, job_script(planned))
    if RUNS_FILE in os.environ:
        with open(os.environ[RUNS_FILE], "a", encoding="utf-8") as file:  # noqa: PTH123 - appended in one write
            file.write(f"{run.directory}\n")
    if planned.scheduler == "local":
        # Record this process until the run's own process is known. Otherwise, a concurrent query would report the run
        # as lost.
        scheduler("local").adopt(run, str(os.getpid()), str(run.directory))
    return run


def directives(planned: Plan) -> list[str]:
    """Return the directives for the plan's allocation, except those that ReFrame's scheduler writes itself."""
    if planned.scheduler == SSH:
        return [*planned.header, started_run(planned.run)]
    system = batch_systems.system(planned.scheduler)
    if system is None or system.reframe_writes is None:
        return list(planned.header)
    return [line for line in planned.header if not re.match(system.reframe_writes, line)]


def submitted(run: Run, name: str, job: str, directory: str) -> None:
    """Record a run's job id and submission directory, which ``hidl status`` uses to find the job."""
    scheduler(name).adopt(run, job, directory)


def ended(run: Run, *, seconds: float = _END_SECONDS) -> Status:
    """Return the final state of a run whose job has ended according to ReFrame.

    ReFrame does not distinguish jobs that reached their time limit, so the scheduler and the job's own record are
    queried again. The state is LOST if it is still unknown after ``seconds``.
    """
    watch = Watch([run])
    deadline = time.monotonic() + seconds
    while True:
        (status,) = watch.poll()
        if status.state.is_final:
            return status
        if time.monotonic() > deadline:
            recorded = read_status(run).state
            state = recorded if recorded.is_final else State.LOST
            return run.end_as(state, reason="the job has ended according to ReFrame, but its final state is unknown")
        watch.pause()


def judge(run: Run) -> Conclusion:
    """Determine the verdict of a run whose job has ended. Raises the same errors as ``conclude``."""
    return conclude(run, plan_of(run), ended(run))


def numbers(conclusion: Conclusion) -> dict[str, tuple[float, str]]:
    """Return the largest step's metrics with their units and, for a study, the efficiency and its interval."""
    last = max(conclusion.steps, key=lambda step: step["ranks"])
    found = {
        name: (float(metric["value"]), metric["unit"])
        for name, metric in last["metrics"].items()
        if isinstance(metric["value"], (int, float)) and not isinstance(metric["value"], bool)
    }
    study = conclusion.study
    if study is not None:
        step = study.steps[-1]
        found["efficiency"] = (step.efficiency, "1")
        if step.interval is not None:
            found |= {"efficiency_low": (step.interval.low, "1"), "efficiency_high": (step.interval.high, "1")}
    return found

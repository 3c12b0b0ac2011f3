"""A run of hidl as the job of a ReFrame check: hidl plans it and judges it, ReFrame submits it and waits for it.

The check's job starts the very script that ``hidl run`` would have submitted, in an allocation that is asked for in the
same words. So all repetitions of a study take place in one allocation, baseline and scaled steps interleaved, and the
verdict is that of ``hidl_cli.analysis.scaling``: ReFrame compares one number with a constant and knows no noise.
What is left is a run's directory like any other.
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
from hidl_cli.launch.placement import Asked
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import Plan, create_run, plan_of
from hidl_cli.plan.prepare import RunRequest, prepare
from hidl_cli.record.run import Run, State, Status
from hidl_cli.runs.conclude import Conclusion, conclude
from hidl_cli.runs.follow import Watch
from hidl_cli.schedulers import scheduler
from hidl_cli.schedulers.decision import read_status
from hidl_cli.schedulers.ssh.header import started_run
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack.schema import Device
from hidl_cli.validate.reframe import scale

_END_SECONDS = 60.0
#: Names the file that lists the runs of one validation, one a line, so that an interrupt can end them.
RUNS_FILE = "HIDL_VALIDATION_RUNS"


@dataclass(frozen=True)
class Place:
    """Where checks run: what the partition's ``extras`` in ReFrame's configuration say. None: hidl's own default.

    ``hosts``: as ``--hosts`` has them.
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
        """Return the site, on the hosts if any are named."""
        return on_hosts(load_site(self.site), self._hosts)

    @property
    def _hosts(self) -> Hosts | None:
        return None if self.hosts is None else parse_hosts(self.hosts)

    @property
    def asked(self) -> Asked:
        """What the scheduler is asked for."""
        return Asked(
            partition=self.partition,
            time_limit=self.time_limit,
            account=self.account,
            qos=self.qos,
            reservation=self.reservation,
            hosts=self._hosts,
        )

    def extras(self) -> dict[str, Any]:
        """As ``extras``."""
        return {f"hidl_{name}": value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> Place:
        """What ``extras`` wrote."""
        return cls(**{name: extras[f"hidl_{name}"] for name in cls.__dataclass_fields__ if f"hidl_{name}" in extras})


@dataclass(frozen=True)
class Wish:
    """What a check wants to be run. ``study``: how it scales up to ``scale``; ``fill_nodes``: as many ranks on each
    node as on the one node of the scale ``1-node``; ``ranks_per_node``: so many, whatever the scale has."""

    workload: str
    scale: str
    study: bool = False
    assignments: Sequence[str] = ()
    repeat: int | None = None
    target: float | None = None
    fill_nodes: bool = False
    ranks_per_node: int | None = None


def plan(place: Place, wish: Wish) -> Plan:
    """The launch plan of the wish; raises what ``prepare`` raises."""
    site = place.load_site()
    size = scale(site, place.partition, wish.scale).with_overhead(load_workload(wish.workload).overhead_ranks)
    if wish.study and size.study is None:
        raise UsageError(
            f"scale {wish.scale} has no smaller scale to compare with", hint="leave it out of the study's scales"
        )
    per_node = wish.ranks_per_node or size.ranks_per_node
    if wish.fill_nodes and size.nodes > 1:
        per_node = size.fullest
    return prepare(
        RunRequest(
            workload=wish.workload,
            site=place.site,
            nodes=1 if wish.study else size.nodes,
            ranks_per_node=per_node,
            assignments=wish.assignments,
            scale=size.study if wish.study else None,
            repeat=wish.repeat,
            target=wish.target,
            prefix=place.prefix,
            device=place.device,
            any_device=True,
            asked=place.asked,
            validates=True,
        )
    )


def begin(planned: Plan) -> Run:
    """Make the run's directory, with its job script, which the check's job is to start."""
    run = create_run(planned, job_script(planned))
    if RUNS_FILE in os.environ:
        with open(os.environ[RUNS_FILE], "a", encoding="utf-8") as file:  # noqa: PTH123 - appended in one write
            file.write(f"{run.directory}\n")
    if planned.scheduler == "local":
        # Until its process is known, this one stands for it, or a concurrent query would take it for lost.
        scheduler("local").adopt(run, str(os.getpid()), str(run.directory))
    return run


def directives(planned: Plan) -> list[str]:
    """Return the lines that request the plan's allocation, without those that ReFrame's scheduler writes itself."""
    if planned.scheduler == SSH:
        return [*planned.header, started_run(planned.run)]
    system = batch_systems.system(planned.scheduler)
    if system is None or system.reframe_writes is None:
        return list(planned.header)
    return [line for line in planned.header if not re.match(system.reframe_writes, line)]


def submitted(run: Run, name: str, job: str, directory: str) -> None:
    """Write down which job the run is, and where it was submitted from: ``hidl status`` knows it by both."""
    scheduler(name).adopt(run, job, directory)


def ended(run: Run, *, seconds: float = _END_SECONDS) -> Status:
    """The final state of a run whose job is over by ReFrame's word, which calls a job that ran out of time ended too.

    So the scheduler is queried again, and the job's own record counts. LOST if it is still unknown after ``seconds``.
    """
    watch = Watch([run])
    deadline = time.monotonic() + seconds
    while True:
        (status,) = watch.poll()
        if status.state.is_final:
            return status
        if time.monotonic() > deadline:
            said = read_status(run)
            state = said.state if said.state.is_final else State.LOST
            return run.end_as(state, reason="ReFrame reports the job as ended, and the scheduler does not say how")
        watch.pause()


def judge(run: Run) -> Conclusion:
    """Judge a run whose job is over; raises what ``conclude`` raises."""
    return conclude(run, plan_of(run), ended(run))


def numbers(conclusion: Conclusion) -> dict[str, tuple[float, str]]:
    """The figures of the largest step, each with its unit; of a study, its efficiency with the interval besides."""
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

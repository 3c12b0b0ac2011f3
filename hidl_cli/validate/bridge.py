"""A run of hidl as the job of a ReFrame check: hidl plans it and judges it, ReFrame submits it and waits for it.

The check's job starts the very script that ``hidl run`` would have submitted, in an allocation that is asked for in the
same words. So all repetitions of a study take place in one allocation, baseline and scaled steps interleaved, and the
verdict is that of ``hidl_cli/results/scaling.py``: ReFrame compares one number with a constant, which knows no noise.
What is left is a run's directory like any other.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hidl_cli.errors import UsageError
from hidl_cli.launch.allocation import Asked
from hidl_cli.launch.script import job_script
from hidl_cli.record.run import Run, create
from hidl_cli.record.state import State, Status
from hidl_cli.runs.conclude import conclude
from hidl_cli.runs.follow import Watch
from hidl_cli.runs.judging import Conclusion
from hidl_cli.runs.load import load_workload
from hidl_cli.runs.plan import Plan, plan_of
from hidl_cli.runs.prepare import Request, prepare
from hidl_cli.schedulers import local, lsf, slurm
from hidl_cli.site.load import load_site
from hidl_cli.validate.scales import scale

#: Options that ReFrame writes into each script itself.
_OF_REFRAME = re.compile(
    r"#SBATCH --(job-name|output|error|open-mode|time|partition|account|qos|constraint|reservation)\b"
    r"|#BSUB -(J|o|e|W|q|P|G|U)\b"
)
_END_SECONDS = 60.0
#: Names the file that lists the runs of one validation, one a line, so that whoever interrupts it can end them.
RUNS_FILE = "HIDL_VALIDATION_RUNS"


@dataclass(frozen=True)
class Place:
    """Where checks run: what the partition's ``extras`` in ReFrame's configuration say. None: hidl's own default."""

    site: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    time_limit: float | None = None
    prefix: str | None = None

    @property
    def asked(self) -> Asked:
        """What the scheduler is asked for."""
        return Asked(
            partition=self.partition,
            time_limit=self.time_limit,
            account=self.account,
            qos=self.qos,
            reservation=self.reservation,
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
    site = load_site(place.site)
    size = scale(site, place.partition, wish.scale).with_overhead(load_workload(wish.workload).overhead_ranks)
    if wish.study and size.study is None:
        raise UsageError(
            f"scale {wish.scale} has nothing smaller to be compared with", hint="leave it out of the study's scales"
        )
    per_node = wish.ranks_per_node or size.ranks_per_node
    if wish.fill_nodes and size.nodes > 1:
        per_node = size.fullest
    return prepare(
        Request(
            workload=wish.workload,
            site=place.site,
            nodes=1 if wish.study else size.nodes,
            ranks_per_node=per_node,
            assignments=wish.assignments,
            scale=size.study if wish.study else None,
            repeat=wish.repeat,
            target=wish.target,
            prefix=place.prefix,
            asked=place.asked,
        )
    )


def begin(planned: Plan) -> Run:
    """Make the run's directory, with its job script, which the check's job is to start."""
    run = create(planned, job_script(planned))
    if RUNS_FILE in os.environ:
        with open(os.environ[RUNS_FILE], "a", encoding="utf-8") as file:  # noqa: PTH123 - appended in one write
            file.write(f"{run.directory}\n")
    if planned.scheduler == "local":
        # Until its process is known, this one stands for it: whoever looks meanwhile must not take it for lost.
        local.adopt(run, os.getpid())
    return run


def directives(planned: Plan) -> list[str]:
    """The lines that ask for the plan's allocation, without those that ReFrame writes itself."""
    return [line for line in planned.header if not _OF_REFRAME.match(line)]


def submitted(run: Run, scheduler: str, job: str, directory: str) -> None:
    """Write down which job the run is, and where it was submitted from: ``hidl status`` knows it by both."""
    if scheduler == "local":
        local.adopt(run, int(job))
    elif scheduler == "slurm":
        from hidl_cli.schedulers.slurm.cluster import this_cluster

        slurm.ticket.keep(run, slurm.ticket.Ticket(job, this_cluster(), time.time(), directory))
    elif scheduler == "lsf":
        lsf.ticket.keep(run, lsf.ticket.Ticket(job, None, time.time()))


def ended(run: Run, *, seconds: float = _END_SECONDS) -> Status:
    """The final state of a run whose job is over by ReFrame's word, which calls a job that ran out of time ended too.

    So the scheduler is asked anew, and the job's own record counts. LOST where nobody knows after ``seconds``.
    """
    watch = Watch([run])
    deadline = time.monotonic() + seconds
    while True:
        (status,) = watch.poll()
        if status.state.is_final:
            return status
        if time.monotonic() > deadline:
            run.end_as(State.LOST, reason="ReFrame says that the job has ended, and nobody knows how")
            return run.status()
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

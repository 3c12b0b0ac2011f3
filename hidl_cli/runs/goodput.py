"""The goodput of a run of several jobs: useful step time, lost work, restarts and checkpoints."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.plan.cost import limit_at_scheduler
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record import Run, Status, each_job_once
from hidl_cli.schedulers.decision import read_status
from hidl_workloads.progress import DIRECTORY, SCHEMA
from hidl_workloads.stop import STOPPED


@dataclass(frozen=True)
class JobSteps:
    """A program's record of its steps in one job.

    Attributes:
        job_started: Start of the job, in seconds since the epoch, as in its status.
        began: When the program was ready to look for a checkpoint.
        first_step_ended: When its first step ended.
        written: When it wrote the record.
        points: Steps completed in all jobs, and the seconds that those of this job took: at its start, after its first
            step, at its checkpoints and at its end, in ascending order.
        checkpoints: Number of checkpoints that it wrote.
        checkpoint_seconds: Seconds that they took.
    """

    job_started: float
    began: float
    first_step_ended: float
    written: float
    points: tuple[tuple[int, float], ...]
    checkpoints: int
    checkpoint_seconds: float

    @classmethod
    def from_json(cls, document: Any) -> JobSteps:
        """Parse a record of ``hidl_workloads.progress``; raises ``ValueError``, ``KeyError`` or ``TypeError``.

        A job's first step may compile or load. It counts at most as long as the mean of the other steps.
        """
        begin, first, last = (int(document[key]) for key in ("from_step", "first_step", "step"))
        others, first_seconds = float(document["seconds"]), float(document["first_seconds"])
        if last > first:
            first_seconds = min(first_seconds, others / (last - first) * (first - begin))
        saves = [(int(step), first_seconds + float(seconds)) for step, seconds in document["saves"]]
        points = sorted({(begin, 0.0), (first, first_seconds), *saves, (last, first_seconds + others)})
        return cls(
            job_started=float(document["job_started"]),
            began=float(document["began"]),
            first_step_ended=float(document["first_step_ended"]),
            written=float(document["written"]),
            points=tuple(points),
            checkpoints=int(document["checkpoints"]),
            checkpoint_seconds=float(document["checkpoint_seconds"]),
        )

    @property
    def start(self) -> int:
        """The number of steps that earlier jobs had completed."""
        return self.points[0][0]

    @property
    def seconds(self) -> float:
        """The total time of the job's steps, in seconds."""
        return self.points[-1][1]

    def seconds_until(self, step: int) -> float:
        """Return the time, in seconds, of the job's steps up to ``step``, interpolated between recorded points."""
        steps = [each for each, _ in self.points]
        after = bisect_left(steps, step)
        if after == 0:
            return 0.0
        if after == len(steps):
            return self.seconds
        (low, least), (high, most) = self.points[after - 1 : after + 1]
        return least + (most - least) * (step - low) / (high - low)


@dataclass(frozen=True)
class _JobWithSteps:
    """A job with its records, of which there are several if its program was started several times."""

    status: Status
    records: tuple[JobSteps, ...]
    nodes: int

    @property
    def started(self) -> float:
        return self.status.started or 0.0

    @property
    def ended(self) -> float:
        """The end of the job; if it has recorded none, when its last record was written."""
        if self.status.ended is not None:
            return self.status.ended
        return max((each.written for each in self.records), default=self.started)

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)

    @property
    def is_open(self) -> bool:
        """True if the job has recorded no end: it is running, or was killed."""
        return self.status.ended is None

    @property
    def has_failed(self) -> bool:
        return self.status.exit_status != STOPPED


@dataclass(frozen=True)
class Goodput:
    """The efficiency with which a run of several jobs used its nodes.

    Attributes:
        jobs: Number of jobs that have started.
        node_seconds: Time of all jobs, times their nodes.
        useful_seconds: Time of the steps that the result is based on, each counted once.
        useful_node_seconds: The same, times the nodes of the job.
        lost_seconds: Time of the steps that a later job repeated.
        lost_node_hours: The same, times the charged nodes of the job, in hours.
        job_seconds: Time of all jobs.
        failures: Number of jobs after which the run continued although they had not stopped in good order.
        restart_seconds: Time from the start of each job but the first to the end of its first step, if one has ended.
        checkpoints: Number of checkpoints.
        checkpoint_seconds: Time that the program waited for them.
        without_step: Number of jobs that ended before their first step did.
        without_end: Number of jobs that were killed. Each counts until its last record, or not at all without one.
        unrecorded_node_seconds: Upper bound on the time that is not counted for this reason, times the nodes; None if
            there is none.
    """

    jobs: int
    node_seconds: float
    useful_seconds: float
    useful_node_seconds: float
    lost_seconds: float
    lost_node_hours: float
    job_seconds: float
    failures: int
    restart_seconds: tuple[float, ...]
    checkpoints: int
    checkpoint_seconds: float
    without_step: int = 0
    without_end: int = 0
    unrecorded_node_seconds: float | None = 0.0

    @property
    def share(self) -> float:
        """The goodput: useful step time divided by node time."""
        return self.useful_node_seconds / self.node_seconds

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics in the format of metrics.json."""
        restarts, samples = self.restart_seconds, list(self.restart_seconds)
        found = {
            "goodput": _metric(self.share, "share"),
            "lost_work": _metric(self.lost_seconds, "s"),
            "lost_node_hours": _metric(self.lost_node_hours, "node-h"),
        }
        if restarts:
            found["restart_time"] = {"value": sum(restarts) / len(restarts), "unit": "s", "samples": samples}
        if self.failures:
            found["time_between_failures"] = _metric(self.job_seconds / self.failures, "s")
        if self.checkpoints:
            found["checkpoint_time"] = _metric(self.checkpoint_seconds / self.checkpoints, "s")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the goodput as plain data, with the names of the metrics; a metric without a value is None."""
        values = {name: metric["value"] for name, metric in self.metrics().items()}
        return {
            "summary": self.describe(),
            "jobs": self.jobs,
            "failures": self.failures,
            "checkpoints": self.checkpoints,
            "jobs_without_step": self.without_step,
            "jobs_without_end": self.without_end,
            "job_time": self.job_seconds,
            "node_time": self.node_seconds,
            "unrecorded_node_time": self.unrecorded_node_seconds,
            "useful_time": self.useful_seconds,
            "useful_node_time": self.useful_node_seconds,
            **dict.fromkeys(("restart_time", "time_between_failures", "checkpoint_time")),
            **values,
        }

    def describe(self) -> str:
        """Describe the goodput in one sentence."""
        parts = [f"goodput {self.share:.3f} in {_count(self.jobs)}"]
        if self.jobs > 1:
            if self.lost_seconds:
                parts.append(f"{self.lost_seconds:.3g} s of steps repeated ({self.lost_node_hours:.3g} node-h)")
            elif self.failures:
                unrecorded = "up to 1 s of steps (60 s if a node was lost) before each is not recorded"
                parts.append(f"no recorded step repeated after {self.failures} failure(s); {unrecorded}")
            else:
                parts.append("no step repeated")
        if self.restart_seconds:
            mean = sum(self.restart_seconds) / len(self.restart_seconds)
            parts.append(f"{mean:.3g} s from the start of a job to the end of its first step")
        if self.without_step:
            parts.append(f"no step in {_count(self.without_step)}")
        if self.without_end:
            killed = f"{_count(self.without_end)} killed"
            if self.unrecorded_node_seconds is not None:
                least = self.useful_node_seconds / (self.node_seconds + self.unrecorded_node_seconds)
                killed += f" (goodput at least {least:.3f}, with the time that was not recorded)"
            parts.append(killed)
        return ", ".join(parts)


def read_goodput(run: Run, plan: Plan) -> Goodput | None:
    """Return the goodput of a run so far, or None if it is a single job or its program recorded no steps."""
    if not plan.max_jobs:
        return None
    return measure(
        _statuses(run),
        _records(run),
        nodes=plan.allocation.nodes,
        share=plan.allocation.share,
        limit=limit_at_scheduler(plan),
    )


def nodes_of_jobs(run: Run) -> list[int]:
    """Return the number of nodes of each job that has started, in the order of their starts."""
    jobs = _without_rejected(_jobs(_statuses(run), (), 0))
    return [job.nodes for job in jobs]


def describe_nodes(nodes: Sequence[int]) -> str:
    """Describe the numbers of nodes of a run's jobs, such as ``2, 1 and 2 nodes``."""
    *others, last = map(str, nodes)
    text = f"{', '.join(others)} and {last}" if others else last
    return f"{_count(len(nodes))} on {text} node{'' if list(nodes) == [1] else 's'}"


def count_failures(run: Run, plan: Plan) -> tuple[float, int]:
    """Return the time of a run's jobs times their nodes, in seconds, and the failures that the run recovered from."""
    jobs = _jobs(_statuses(run), _records(run), plan.allocation.nodes)
    trained = _without_rejected(jobs)
    return sum(job.seconds * job.nodes for job in trained), sum(job.has_failed for job in jobs[:-1])


def measure(
    statuses: Sequence[Status],
    records: Iterable[JobSteps],
    *,
    nodes: int,
    share: float = 1.0,
    limit: float | None = None,
) -> Goodput | None:
    """Return the goodput of jobs, or None if no steps are recorded or the jobs took no time.

    Args:
        statuses: The last status of each job.
        records: What the programs recorded. A record of another job is ignored.
        nodes: Number of nodes of a job whose hosts are unknown.
        share: Part of each node that a job has.
        limit: Time limit of a job in seconds.
    """
    jobs = _jobs(statuses, records, nodes)
    trained = _without_rejected(jobs)
    ordered = [(job, record) for job in jobs for record in job.records]
    node_seconds = sum(job.seconds * job.nodes for job in jobs)
    if not ordered or not node_seconds:
        return None
    useful = useful_nodes = lost = lost_nodes = 0.0
    for number, (job, record) in enumerate(ordered):
        kept_until = min((later.start for _, later in ordered[number + 1 :]), default=record.points[-1][0])
        kept = record.seconds_until(kept_until)
        useful, lost = useful + kept, lost + record.seconds - kept
        useful_nodes += kept * job.nodes
        lost_nodes += (record.seconds - kept) * job.nodes
    is_running = jobs[-1].is_open and not jobs[-1].status.state.is_final
    ended = jobs[:-1] if is_running else trained
    return Goodput(
        jobs=len(trained),
        node_seconds=node_seconds,
        useful_seconds=useful,
        useful_node_seconds=useful_nodes,
        lost_seconds=lost,
        lost_node_hours=lost_nodes * share / 3600,
        job_seconds=sum(job.seconds for job in trained),
        failures=sum(job.has_failed for job in jobs[:-1]),
        restart_seconds=tuple(
            max(0.0, job.records[0].first_step_ended - job.started) for job in trained[1:] if job.records
        ),
        checkpoints=sum(record.checkpoints for _, record in ordered),
        checkpoint_seconds=sum(record.checkpoint_seconds for _, record in ordered),
        without_step=sum(not job.records for job in ended),
        without_end=sum(job.is_open for job in ended),
        unrecorded_node_seconds=_unrecorded(jobs, len(ended), limit),
    )


def _statuses(run: Run) -> list[Status]:
    """Return the last status of each job that has started."""
    found = each_job_once([*run.attempts(), read_status(run)])
    return [status for status in found if status.started is not None]


def _jobs(statuses: Iterable[Status], records: Iterable[JobSteps], nodes: int) -> list[_JobWithSteps]:
    """Return the jobs with their records, both in the order of their starts."""
    of_jobs: dict[float, list[JobSteps]] = {}
    for record in records:
        of_jobs.setdefault(record.job_started, []).append(record)
    return [
        _JobWithSteps(status, _one_after_another(of_jobs.get(status.started or 0.0, ())), len(status.hosts) or nodes)
        for status in sorted(statuses, key=lambda status: status.started or 0.0)
    ]


def _one_after_another(records: Iterable[JobSteps]) -> tuple[JobSteps, ...]:
    """Return a job's records in the order of their beginnings; of those that overlap, the one with the most steps.

    Processes that train at the same time train the same steps: several ranks may have recorded them, or a program that
    uses ``hidl_workloads.checkpoint`` may also have called ``begin_job``.
    """
    kept: list[JobSteps] = []
    ended = -math.inf
    for record in sorted(records, key=lambda record: record.began):
        if record.began >= ended:
            kept.append(record)
        else:
            kept[-1] = max(kept[-1], record, key=lambda each: (each.points[-1][0] - each.start, each.checkpoints))
        ended = max(ended, record.written)
    return tuple(kept)


def _without_rejected(jobs: Sequence[_JobWithSteps]) -> Sequence[_JobWithSteps]:
    """Leave out a last job that only found that the run may not continue."""
    return jobs[:-1] if jobs and jobs[-1].status.not_run else jobs


def _unrecorded(jobs: Sequence[_JobWithSteps], ended: int, limit: float | None) -> float | None:
    """Return the most time, times nodes, that the killed ones of the first ``ended`` jobs may have used unrecorded.

    A job ends by its time limit, and before the next one starts.
    """
    found = 0.0
    for number, job in enumerate(jobs[:ended]):
        if job.is_open:
            ends = [] if limit is None else [job.started + limit]
            ends += [later.started for later in jobs[number + 1 : number + 2]]
            if not ends:
                return None
            found += max(0.0, min(ends) - job.ended) * job.nodes
    return found


def _records(run: Run) -> list[JobSteps]:
    """Return the readable records of a run's jobs. Those of another run that used the directory before are skipped."""
    found = []
    for file in sorted((run.directory / "checkpoint" / DIRECTORY).glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="ascii"))
            if document["schema"] == SCHEMA and document["run"] == run.id:
                found.append(JobSteps.from_json(document))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # cut off by a full disk or a lost node
            continue
    return found


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"


def _metric(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "samples": [value]}

"""The goodput of a run of several jobs: useful step time, lost work, restarts and checkpoints."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record import Run, Status
from hidl_workloads.progress import DIRECTORY, SCHEMA
from hidl_workloads.stop import STOPPED

#: Seconds by which the clocks of two nodes may differ.
_SKEW = 2.0


@dataclass(frozen=True)
class JobSteps:
    """A program's record of its steps in one job.

    Attributes:
        began: When the program was ready to look for a checkpoint, in seconds since the epoch.
        first_step_ended: When its first step ended.
        written: When it wrote the record.
        points: Steps completed in all jobs, and the seconds that those of this job took: at its start, after its first
            step, at its checkpoints and at its end, in ascending order.
        checkpoints: Number of checkpoints that it wrote.
        checkpoint_seconds: Seconds that they took.
    """

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
        """The seconds that all steps of the job took."""
        return self.points[-1][1]

    def seconds_until(self, step: int) -> float:
        """Return the seconds that the job's steps up to ``step`` took, interpolated between two points."""
        steps = [each for each, _ in self.points]
        after = bisect_left(steps, step)
        if after == 0:
            return 0.0
        if after == len(steps):
            return self.seconds
        (low, least), (high, most) = self.points[after - 1 : after + 1]
        return least + (most - least) * (step - low) / (high - low)


@dataclass(frozen=True)
class Goodput:
    """The use that a run of several jobs made of its nodes.

    Attributes:
        jobs: Number of jobs that have started.
        node_seconds: Time of all jobs, times their nodes.
        useful_seconds: Time of the steps that the result is based on, each counted once.
        useful_node_seconds: The same, times the nodes of the job.
        lost_seconds: Time of the steps that a later job repeated.
        lost_node_hours: The same, times the charged nodes of the job, in hours.
        job_seconds: Time of all jobs.
        failures: Number of jobs after which the run continued although they had not stopped in good order.
        restart_seconds: Time from the start of each job but the first to the end of its first step.
        checkpoints: Number of checkpoints.
        checkpoint_seconds: Time that the program waited for them.
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

    @property
    def share(self) -> float:
        """The goodput: useful step time divided by node time."""
        return self.useful_node_seconds / self.node_seconds

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics in the form of metrics.json."""
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

    def describe(self) -> str:
        """Describe the goodput in one sentence."""
        parts = [f"goodput {self.share:.3f} in {self.jobs} job{'' if self.jobs == 1 else 's'}"]
        if self.jobs > 1:
            lost = f"{self.lost_seconds:.3g} s of steps repeated ({self.lost_node_hours:.3g} node-h)"
            parts.append(lost if self.lost_seconds else "no step repeated")
        if self.restart_seconds:
            mean = sum(self.restart_seconds) / len(self.restart_seconds)
            parts.append(f"{mean:.3g} s from the start of a job to its first new step")
        return ", ".join(parts)


def read_goodput(run: Run, plan: Plan) -> Goodput | None:
    """Return the goodput of a run so far, or None if it is a single job or its program recorded no steps."""
    if not plan.max_jobs:
        return None
    jobs = [each for each in (*run.attempts(), run.status()) if each.started is not None]
    return measure(jobs, _records(run), nodes=plan.allocation.nodes, share=plan.allocation.share)


def measure(jobs: Sequence[Status], records: Iterable[JobSteps], *, nodes: int, share: float = 1.0) -> Goodput | None:
    """Return the goodput of jobs, or None if there is no record of their steps or no time.

    Args:
        jobs: The jobs' last statuses. A job that was killed recorded no end: it counts until its last record.
        records: What the programs recorded.
        nodes: Number of nodes of a job whose hosts are unknown.
        share: Part of each node that a job has.
    """
    jobs = sorted(jobs, key=lambda job: job.started or 0.0)
    ordered = sorted(records, key=lambda record: record.began)
    owners = [_job_of(record, jobs) for record in ordered]
    sizes = [len(job.hosts) or nodes for job in jobs]
    useful = useful_nodes = lost = lost_nodes = 0.0
    for number, (record, owner) in enumerate(zip(ordered, owners, strict=True)):
        if owner is None:
            continue
        kept_until = min((later.start for later in ordered[number + 1 :]), default=record.points[-1][0])
        kept = record.seconds_until(kept_until)
        useful, lost = useful + kept, lost + record.seconds - kept
        useful_nodes += kept * sizes[owner]
        lost_nodes += (record.seconds - kept) * sizes[owner]
    spent, seconds, restarts = 0.0, 0.0, []
    for number, job in enumerate(jobs):
        own = [record for record, owner in zip(ordered, owners, strict=True) if owner == number]
        started = job.started or 0.0
        ended = job.ended if job.ended is not None else max((each.written for each in own), default=started)
        seconds += max(0.0, ended - started)
        spent += max(0.0, ended - started) * sizes[number]
        if number and own:
            restarts.append(max(0.0, own[0].first_step_ended - started))
    counted = [record for record, owner in zip(ordered, owners, strict=True) if owner is not None]
    if not counted or not spent:
        return None
    return Goodput(
        jobs=len(jobs),
        node_seconds=spent,
        useful_seconds=useful,
        useful_node_seconds=useful_nodes,
        lost_seconds=lost,
        lost_node_hours=lost_nodes * share / 3600,
        job_seconds=seconds,
        failures=sum(job.exit_status != STOPPED for job in jobs[:-1]),
        restart_seconds=tuple(restarts),
        checkpoints=sum(each.checkpoints for each in counted),
        checkpoint_seconds=sum(each.checkpoint_seconds for each in counted),
    )


def _job_of(record: JobSteps, jobs: Sequence[Status]) -> int | None:
    """Return the number of the job that wrote a record: the last one that had started before it."""
    return next(
        (number for number in reversed(range(len(jobs))) if (jobs[number].started or 0.0) <= record.began + _SKEW), None
    )


def _records(run: Run) -> list[JobSteps]:
    """Return the readable records of a run's jobs. Those of another run that used the directory before are skipped."""
    found = []
    for file in sorted((run.directory / "checkpoint" / DIRECTORY).glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="ascii"))
            if document["schema"] == SCHEMA and document["run"] == run.id:
                found.append(JobSteps.from_json(document))
        except (OSError, ValueError, KeyError, TypeError):  # cut off by a full disk or the loss of a node
            continue
    return found


def _metric(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "samples": [value]}

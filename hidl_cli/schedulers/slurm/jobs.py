"""Jobs as Slurm tells of them: the questions, and how the answers are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hidl_cli.record.state import State
from hidl_cli.schedulers.slurm.states import speaks_for_all, state_of

#: The last field may hold the separator. ``--json`` is not used: it ignores filters, and differs between versions.
_SQUEUE = {
    "id": "%i",
    "word": "%T",
    "reason": "%r",
    "start": "%S",
    "nodes": "%D",
    "limit": "%l",
    "end": "%e",
    "partition": "%P",
    "hosts": "%N",
    "directory": "%Z",
}
_SACCT = {
    "id": "JobID",
    "word": "State",
    "reason": "Reason",
    "start": "Start",
    "nodes": "NNodes",
    "limit": "Timelimit",
    "end": "End",
    "partition": "Partition",
    "hosts": "NodeList",
    "directory": "WorkDir",
}
_NOTHING = frozenset(("", "None", "N/A", "Unknown", "None assigned", "(null)"))


@dataclass(frozen=True)
class Job:
    """One job: ``id`` without the number of a part, ``word`` Slurm's own for its state; ``""`` where nothing is told.

    ``nodes`` and ``limit`` are what it asks for (the time limit in Slurm's form); ``directory`` is where it was
    submitted from: this is how a job is known whose id was lost.
    """

    id: str
    word: str
    reason: str = ""
    start: str = ""
    nodes: str = ""
    limit: str = ""
    end: str = ""
    partition: str = ""
    hosts: str = ""
    directory: str = ""

    @property
    def state(self) -> State:
        """What hidl calls its state."""
        return state_of(self.word)

    def ended_before(self, seconds: float, now: float) -> bool:
        """Did it end more than so many seconds ago? Where no time is told, it did."""
        try:
            return now - datetime.fromisoformat(self.end).timestamp() > seconds
        except ValueError:
            return True


def squeue(user: int, cluster: str | None) -> list[str]:
    """The command that tells of all jobs of a user: those that ended lately too, and those in hidden partitions."""
    words = [
        "squeue",
        "--noheader",
        "--all",
        "--noconvert",
        "--states=all",
        f"--user={user}",
        f"--format={'|'.join(_SQUEUE.values())}",
    ]
    return [*words, *([] if cluster is None else [f"--clusters={cluster}"])]


def sacct(cluster: str | None, *, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """The command that tells of jobs from the accounting: of these ids, or all of the user's since then (seconds)."""
    words = ["sacct", "--allocations", "--noheader", "--parsable2", f"--format={','.join(_SACCT.values())}"]
    if ids:
        words.append(f"--jobs={','.join(ids)}")
    if since is not None:
        words.append(f"--starttime={datetime.fromtimestamp(since):%Y-%m-%dT%H:%M:%S}")
    return [*words, *([] if cluster is None else [f"--clusters={cluster}"])]


def read(lines: Iterable[str]) -> list[Job]:
    """The jobs in the answer of ``squeue`` or ``sacct``; the parts of an array or of a heterogeneous job are one."""
    parts: dict[str, list[Job]] = {}
    for line in lines:
        values = line.split("|", len(_SQUEUE) - 1)
        number = re.match(r"\d+", values[0])
        if len(values) == len(_SQUEUE) and number:
            rest = ("" if value in _NOTHING else value for value in values[2:])
            job = Job(number.group(), values[1], *rest)
            parts.setdefault(job.id, []).append(job)
    return [jobs[speaks_for_all([job.state for job in jobs])] for jobs in parts.values()]


def find(jobs: Iterable[Job], number: str | None, directory: str) -> Job | None:
    """The job of that number, or (None) the last one that was submitted from that directory.

    A number alone is not believed: a controller that forgot its last jobs, or is set up anew, gives it to another.
    """
    if number is not None:
        return next((job for job in jobs if job.id == number and job.directory in ("", directory)), None)
    return max((job for job in jobs if job.directory == directory), key=lambda job: int(job.id), default=None)


def minutes(limit: str) -> float | None:
    """Read a time limit in Slurm's form: ``days-hours:minutes:seconds``, ``minutes:seconds``; None: there is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, mins, secs = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + secs / 60

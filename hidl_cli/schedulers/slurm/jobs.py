"""Jobs as Slurm describes them: the queries, and how the answers are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from hidl_cli.record.state import State
from hidl_cli.schedulers.decision import Job

#: squeue's and sacct's names of the same fields. The last may hold the separator. ``--json`` is not used: it ignores
#: filters, and differs between versions.
_FIELDS = (
    ("%i", "JobID"),
    ("%T", "State"),
    ("%r", "Reason"),
    ("%S", "Start"),
    ("%D", "NNodes"),
    ("%l", "Timelimit"),
    ("%e", "End"),
    ("%P", "Partition"),
    ("%N", "NodeList"),
    ("%Z", "WorkDir"),
)
_NOTHING = frozenset(("", "None", "N/A", "Unknown", "None assigned", "(null)"))

#: Slurm's words for a state. ExitCode says nothing: it is 0:0 after a time-out. The order is that of parts of one job
#: (an array, a heterogeneous job): the first speaks for all.
_STATES = {
    State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING UPDATE_DB EXPEDITING REVOKED",
    State.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    State.NODE_FAIL: "NODE_FAIL BOOT_FAIL RECONFIG_FAIL",
    State.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    State.TIMEOUT: "TIMEOUT DEADLINE",
    State.PREEMPTED: "PREEMPTED",
    State.FAILED: "FAILED LAUNCH_FAILED",
    State.CANCELLED: "CANCELLED",
    State.COMPLETED: "COMPLETED",
}
_BY_WORD = {word: state for state, words in _STATES.items() for word in words.split()}
_ORDER = list(_STATES)


#: What lets a held job go on (squeue(1), "JOB REASON CODES").
_HELD = {
    "JobHeldUser": "scontrol release {id} lets it start",
    "JobHeldAdmin": "an administrator of the site has to release it",
    "launch failed requeued held": "its node could not start it; scontrol release {id} lets it try again",
    "job requeued in held state": "scontrol release {id} lets it start again",
}


@dataclass(frozen=True)
class SlurmJob(Job):
    """``mark`` is the directory that it was submitted from. What it asked for, in Slurm's form; empty if not told."""

    why: str = ""
    nodes: str = ""
    limit: str = ""
    partition: str = ""


def squeue(cluster: str | None, *, id: str | None = None) -> list[str]:
    """Return the command that lists the job ``id``; None: all jobs of the user.

    It lists jobs that ended lately, too, and those in hidden partitions.
    """
    shape = f"--format={'|'.join(short for short, _ in _FIELDS)}"
    chosen = f"--user={os.getuid()}" if id is None else f"--jobs={id}"
    return ["squeue", "--noheader", "--all", "--noconvert", "--states=all", chosen, shape, *on(cluster)]


def sacct(cluster: str | None, *, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """Return the command that lists jobs from the accounting: of these ids, or all of the user's since (seconds)."""
    shape = f"--format={','.join(long for _, long in _FIELDS)}"
    words = ["sacct", "--allocations", "--noheader", "--parsable2", shape]
    if ids:
        words.append(f"--jobs={','.join(ids)}")
    if since is not None:
        words.append(f"--starttime={datetime.fromtimestamp(since):%Y-%m-%dT%H:%M:%S}")
    return words + on(cluster)


def on(cluster: str | None) -> list[str]:
    """Return the option that names another cluster than the programs' own."""
    return [] if cluster is None else [f"--clusters={cluster}"]


def parse(lines: Iterable[str]) -> list[SlurmJob]:
    """Parse the answer of ``squeue`` or ``sacct``; the parts of an array or of a heterogeneous job are one."""
    parts: dict[str, list[SlurmJob]] = {}
    for line in lines:
        values = line.split("|", len(_FIELDS) - 1)
        number = re.match(r"\d+", values[0])
        if len(values) == len(_FIELDS) and number:
            shown = ("" if value in _NOTHING else value for value in values)
            fields = {name: value for (_, name), value in zip(_FIELDS, shown, strict=True)}
            parts.setdefault(number.group(), []).append(_job(number.group(), fields))
    return [min(jobs, key=lambda job: _ORDER.index(job.state)) for jobs in parts.values()]


def state_of(words: str) -> State:
    """Return the state that Slurm names: ``TIMEOUT``, ``CANCELLED by 1000``, ``COMPLETING+``.

    An unknown word counts as RUNNING: a job ends only by a word that says so.
    """
    first = words.split(maxsplit=1)[0] if words.strip() else ""
    return _BY_WORD.get(first.rstrip("+").upper(), State.RUNNING)


def minutes(limit: str) -> float | None:
    """Parse a time limit in Slurm's form, ``days-hours:minutes:seconds`` or ``minutes:seconds``; None: no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, mins, secs = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + secs / 60


def _job(id: str, told: Mapping[str, str]) -> SlurmJob:
    state = state_of(told["State"])
    ended = _time(told["End"])
    if ended is None and state.is_final:
        ended = 0.0  # no time told: long ago
    return SlurmJob(
        id=id,
        state=state,
        word=told["State"],
        mark=told["WorkDir"],
        reason=_reason(id, state, told),
        ended=ended,
        started=_time(told["Start"]) if state is not State.PENDING else None,
        ending=told["State"].startswith("COMPLETING"),
        why=told["Reason"],
        nodes=told["NNodes"],
        limit=told["Timelimit"],
        partition=told["Partition"],
    )


def _time(told: str) -> float | None:
    """Parse a time, in seconds since the epoch; None if not told."""
    with suppress(ValueError):
        return datetime.fromisoformat(told).timestamp()
    return None


def _reason(id: str, state: State, told: Mapping[str, str]) -> str:
    """Format Slurm's word for the state, with what it says beside."""
    word, why = told["State"], told["Reason"]
    if state is State.PENDING:
        if why in _HELD:
            return f"{why}: {_HELD[why].format(id=id)}"
        start = f", expected to start at {told['Start']}" if told["Start"] else ""
        return (why if word.startswith("PENDING") else f"{word} {why}".strip()) + start
    if state is State.RUNNING:
        return "" if word == "RUNNING" else word
    if state is State.COMPLETED:
        return ""
    limit = f"time limit {told['Timelimit']}" if state is State.TIMEOUT and told["Timelimit"] else ""
    hosts = f"on {told['NodeList']}" if state is State.NODE_FAIL and told["NodeList"] else ""
    return ", ".join(filter(None, (word, "" if why == "TimeLimit" else why, limit, hosts)))

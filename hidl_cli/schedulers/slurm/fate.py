"""How a run fares: from what its job wrote into ``status.json`` and what Slurm says of the job.

The job's own word COMPLETED needs no other. FAILED and CANCELLED are what the script saw of it: that it was the time
limit, a node or the memory, only Slurm knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.slurm.jobs import Job
from hidl_cli.schedulers.slurm.reasons import never_starts

#: How long Slurm may need to say why a job ended after its script did, and a shared file system to show what it wrote.
GRACE_SECONDS = 15.0
#: How long what a job wrote last may be on its way through a shared file system.
LAG_SECONDS = 3.0


class Verb(Enum):
    """What is to be done about a run."""

    SHOW = auto()  #: nothing: it goes on
    END = auto()  #: its end is known: write it down
    REFUSE = auto()  #: it would wait for ever: cancel it


@dataclass(frozen=True)
class Fate:
    """What is to be done, and the status that is then so."""

    verb: Verb
    status: Status


def said_by_the_job(run: Run) -> Status:
    """What the job wrote; as of a job that wrote nothing where it cannot be read (a full disk, a node that fell)."""
    try:
        return run.status()
    except HidlError:
        return Status(State.PENDING)


def is_settled(run: Run, said: Status) -> bool:
    """Is this the end, whatever Slurm says? A FAILED or CANCELLED without a reason is the script's word alone."""
    if said.state not in (State.FAILED, State.CANCELLED):
        return said.state.is_final
    return said.reason is not None or (run.directory / "reason").exists()


def as_before(said: Status, reason: str | None) -> Fate:
    """Nothing new is known: the run goes on as far as anybody can tell."""
    state = State.RUNNING if said.state.is_final else said.state
    return Fate(Verb.SHOW, replace(said, state=state, reason=reason))


def unanswered(said: Status, reason: str, *, now: float | None = None) -> Fate:
    """What becomes of a run while Slurm does not answer: it goes on, unless its job has recorded its end."""
    if _is_over(said, time.time() if now is None else now):
        return Fate(Verb.END, replace(said, reason="as the job itself recorded it; Slurm did not answer"))
    return as_before(said, reason)


def fate(
    said: Status,
    job: Job,
    partition: Callable[[str], Mapping[str, str]],
    *,
    asked: float = 0,
    now: float | None = None,
) -> Fate:
    """What becomes of a run of which Slurm knows the job; ``asked``: when Slurm said so (seconds)."""
    now = time.time() if now is None else now
    if job.state is State.PENDING:
        started_since = said.started is not None and said.started > asked - LAG_SECONDS
        return as_before(said, None) if started_since else _waiting(job, partition)
    if job.state is State.RUNNING:
        return _running(said, job, now)
    by_itself = job.state in (State.COMPLETED, State.FAILED)
    if by_itself and not said.state.is_final and not job.ended_before(LAG_SECONDS, now):
        return as_before(replace(said, state=State.RUNNING), None)
    return _ended(said, job)


def without_job(said: Status, missing_for: float, reason: str) -> Fate:
    """What becomes of a run whose job has been unknown to Slurm for so many seconds, though Slurm answers."""
    if missing_for < GRACE_SECONDS:
        return as_before(said, f"{reason}; waiting for a word of its end")
    if said.state.is_final:  # FAILED or CANCELLED by the script's word, and nobody knows better
        return Fate(Verb.END, replace(said, reason="as the job itself recorded it"))
    return Fate(Verb.END, replace(said, state=State.LOST, reason=reason))


def _waiting(job: Job, partition: Callable[[str], Mapping[str, str]]) -> Fate:
    """A job that waits, for the first time or again: what it wrote before does not hold any more."""
    never = never_starts(job, partition)
    if never is not None:
        return Fate(Verb.REFUSE, Status(State.REFUSED, reason=never))
    words = job.reason if job.word.startswith("PENDING") else f"{job.word} {job.reason}".strip()
    start = f", expected to start at {job.start}" if job.start else ""
    return Fate(Verb.SHOW, Status(State.PENDING, reason=f"{words}{start}" or None))  # None: not looked at yet


def _running(said: Status, job: Job, now: float) -> Fate:
    if _is_over(said, now):
        return Fate(Verb.END, replace(said, reason=f"as the job itself recorded it; Slurm still says {job.word}"))
    reason = None if job.word == "RUNNING" else job.word
    return Fate(Verb.SHOW, replace(said, state=State.RUNNING, reason=reason))


def _is_over(said: Status, now: float) -> bool:
    """Has Slurm had its time to say more of an end that the job recorded?"""
    return said.state.is_final and (said.ended is None or now - said.ended > GRACE_SECONDS)


def _ended(said: Status, job: Job) -> Fate:
    """A final word of Slurm's: the script's is more exact where it ended by itself, Slurm's where it was ended."""
    if job.state in (State.COMPLETED, State.FAILED):
        state = said.state if said.state.is_final else job.state
        return Fate(Verb.END, replace(said, state=state, reason=_why(job) if job.state is State.FAILED else None))
    return Fate(Verb.END, replace(said, state=job.state, reason=_why(job)))


def _why(job: Job) -> str:
    """Slurm's word for the end, with what it says beside."""
    details = {
        State.TIMEOUT: f"time limit {job.limit}" if job.limit else "",
        State.NODE_FAIL: f"on {job.hosts}" if job.hosts else "",
    }.get(job.state, "")
    reason = job.reason if job.reason not in ("", "TimeLimit") else ""
    return ", ".join(word for word in (job.word, reason, details) if word)

"""What becomes of a run: from what its job wrote into ``status.json`` and what the scheduler says of the job.

The job's own word COMPLETED needs no other. FAILED and CANCELLED are what its script saw: whether it was the time
limit, a node or the memory, only the scheduler knows. The table is in docs/explanation/schedulers.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum, auto

from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run, State, Status

#: Seconds for which what a job wrote last may be on its way through a shared file system.
LAG_SECONDS = 3.0
#: After so many seconds without an answer of the scheduler, the end that a job recorded counts.
_UNANSWERED_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Job:
    """A job as the scheduler describes it.

    ``word``: the scheduler's own name of the state. ``mark``: by what its run is recognized; empty if not told.
    ``reason``: why it waits, or how it ended. ``started``, ``ended``: seconds since the epoch, None if not told.
    ``by_itself``: no one else ended it, so its script's word counts. ``ending``: its script is over, and the scheduler
    is cleaning up after it.
    """

    id: str
    state: State
    word: str
    mark: str = ""
    reason: str = ""
    ended: float | None = None
    by_itself: bool = True
    started: float | None = None
    ending: bool = False


@dataclass(frozen=True)
class Never:
    """Why a waiting job would never start, as things stand: final once it has stood for ``after`` seconds.

    0 where the scheduler cannot take it back by itself; nodes come back, and so do accounts that it has yet to load.
    """

    reason: str
    after: float = 0.0


class Verb(Enum):
    """What to do about a run."""

    SHOW = auto()  #: nothing: it goes on
    END = auto()  #: its end is known: write it down
    REFUSE = auto()  #: it would wait for ever: cancel it


@dataclass(frozen=True)
class Decision:
    """What to do, and the status that then holds; ``unclear``: the sources disagree, and one of them may be late."""

    verb: Verb
    status: Status
    unclear: bool = False


@dataclass(frozen=True)
class Clock:
    """Times of a decision, in seconds since the epoch; ``asked``: when the scheduler was asked.

    ``unclear_for``: for how many seconds the sources have disagreed. ``grace``: how many seconds the scheduler may need
    to say why a job ended after its script did, and a shared file system to show what the job wrote.
    """

    grace: float
    asked: float = 0.0
    unclear_for: float = 0.0
    now: float = 0.0

    @classmethod
    def of(cls, grace: float, *, asked: float = 0.0, unclear_for: float = 0.0) -> Clock:
        """Return the clock of this moment."""
        return cls(grace, asked, unclear_for, time.time())

    def is_past_grace(self, said: Status) -> bool:
        """Whether the scheduler had its time to explain the end that the job recorded."""
        return said.state.is_final and (said.ended is None or self.now - said.ended > self.grace)


def read_status(run: Run) -> Status:
    """Return what the job wrote; PENDING if that is unreadable (a full disk, a node that went down)."""
    try:
        return run.status()
    except HidlError:
        return Status(State.PENDING)


def keep(said: Status, reason: str | None, *, unclear: bool = False) -> Decision:
    """Nothing new is known: the run goes on."""
    state = State.RUNNING if said.state.is_final else said.state
    return Decision(Verb.SHOW, replace(said, state=state, reason=reason), unclear)


def without_answer(said: Status, title: str, reason: str, last: Job | None, clock: Clock) -> Decision:
    """Decide while the scheduler does not answer: what it said last stands, and no run ends.

    ``last``: the job in its last answer; ``clock.asked``: when that came.
    """
    if said.state.is_final and said.ended is not None and clock.now - said.ended > _UNANSWERED_SECONDS:
        return Decision(Verb.END, replace(said, reason=f"as the job itself recorded it; {title} did not answer"))
    if last is not None and last.state is State.PENDING and not _began_since(said, clock.asked):
        return Decision(Verb.SHOW, Status(State.PENDING, reason=reason))
    if said.state.is_final:
        return keep(said, f"{reason}; the job recorded {said.state.value}")
    runs = last is not None and last.state is State.RUNNING
    return keep(replace(said, state=State.RUNNING) if runs else said, reason)


def without_job(said: Status, reason: str, clock: Clock) -> Decision:
    """Decide on a run whose job is unknown to the scheduler, though that answers."""
    if clock.unclear_for < clock.grace:
        return keep(said, f"{reason}; waiting for a word of its end", unclear=True)
    if said.state.is_final:  # FAILED or CANCELLED by the script's word, and no other source knows better
        return Decision(Verb.END, replace(said, reason="as the job itself recorded it"))
    return Decision(Verb.END, replace(said, state=State.LOST, reason=reason))


def decide(said: Status, title: str, job: Job, never: str | None, clock: Clock) -> Decision:
    """Decide on a run whose job the scheduler (``title``) knows; ``never``: why it would never start, if so.

    A job that has run, and waits again after a preemption or the loss of a node, has started before and may again.
    """
    if job.state is State.PENDING:
        refused = never if said.started is None else None
        return keep(said, None) if _began_since(said, clock.asked) else _waiting(job, refused)
    if job.state is State.RUNNING:
        return _running(said, job)
    if job.by_itself and job.state in (State.COMPLETED, State.FAILED):
        return _ended_by_itself(said, title, job, clock)
    return Decision(Verb.END, replace(said, state=job.state, reason=job.reason or job.word))


def _waiting(job: Job, never: str | None) -> Decision:
    """A job that waits, for the first time or again: what it wrote before is void."""
    if never is not None:
        return Decision(Verb.REFUSE, Status(State.REFUSED, reason=never))
    return Decision(Verb.SHOW, Status(State.PENDING, reason=job.reason or None))


def _running(said: Status, job: Job) -> Decision:
    """The script's end is not the job's: the scheduler may say why it ended, or start it again."""
    began_again = job.started is not None and said.ended is not None and said.ended < job.started
    if began_again:
        return Decision(Verb.SHOW, Status(State.RUNNING, reason=job.reason or None))
    reason = job.reason or ("the job is ending" if said.state.is_final else None)
    return Decision(Verb.SHOW, replace(said, state=State.RUNNING, reason=reason))


def _began_since(said: Status, asked: float) -> bool:
    """Whether the job began after the scheduler answered, by its own word."""
    return said.started is not None and said.started > asked - LAG_SECONDS


def _ended_by_itself(said: Status, title: str, job: Job, clock: Clock) -> Decision:
    """No one ended the job, so its script's own word counts, as soon as it is here."""
    how = job.reason or f"{title} says {job.word}"
    if said.state.is_final:
        return Decision(Verb.END, replace(said, reason=how))
    recent = clock.unclear_for < clock.grace if job.ended is None else clock.now - job.ended < LAG_SECONDS
    if recent:
        running = replace(said, state=State.RUNNING, reason=f"{how}; the job's own record is not here yet")
        return Decision(Verb.SHOW, running, unclear=True)
    state = State.FAILED if job.state is State.FAILED else State.LOST
    return Decision(Verb.END, replace(said, state=state, reason=f"{how}, and the job left no record of its end"))

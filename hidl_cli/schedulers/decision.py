"""Determine a run's status from its ``status.json`` and from the scheduler's report about its job.

A recorded COMPLETED is final. FAILED and CANCELLED only reflect what the job script observed: the scheduler alone can
report whether the cause was the time limit, a node failure or a lack of memory. docs/explanation/schedulers.md shows
all cases in a table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum, auto

from hidl_cli.errors import HidlError
from hidl_cli.record import Run, State, Status

#: Seconds until the last file that a job wrote becomes visible on a shared file system.
LAG_SECONDS = 3.0
#: Seconds after which a job's recorded end is accepted even if the scheduler still does not respond.
_UNANSWERED_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Job:
    """A job as reported by the scheduler.

    Attributes:
        word: The scheduler's name for the state.
        mark: Text that identifies the run; empty if unknown.
        reason: Why the job is pending, or how it ended.
        ended: Time when the job ended, in seconds since the epoch, or None if unknown.
        by_itself: False if the job was ended by a user or administrator, in which case the status recorded by its
            script is ignored.
        started: Time when the job started, in seconds since the epoch, or None if unknown.
        ending: True if the script has ended and the scheduler is cleaning up.
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
class StartBlocker:
    """The reason why a pending job will never start, provided that it persists for ``after`` seconds.

    Some reasons are temporary: nodes come back, or accounts have not been loaded yet.
    """

    reason: str
    after: float = 0.0


class Action(Enum):
    """An action to take on a run."""

    SHOW = auto()  #: only show the run's status
    END = auto()  #: record that the run has ended
    REFUSE = auto()  #: cancel the run, since it will never start


@dataclass(frozen=True)
class Decision:
    """An action and the resulting status. ``unclear`` is set if the sources disagree and one of them may be delayed."""

    action: Action
    status: Status
    unclear: bool = False


@dataclass(frozen=True)
class Clock:
    """The times that a decision depends on, in seconds.

    Attributes:
        grace: Time that the scheduler may need to report why a script ended, or that a shared file system may need to
            show that it ended.
        asked: Time when the scheduler was queried, since the epoch.
        unclear_for: How long the sources have disagreed.
        now: The current time, since the epoch.
    """

    grace: float
    asked: float = 0.0
    unclear_for: float = 0.0
    now: float = 0.0

    @classmethod
    def of(cls, grace: float, *, asked: float = 0.0, unclear_for: float = 0.0) -> Clock:
        """Return a clock that shows the current time."""
        return cls(grace, asked, unclear_for, time.time())

    def is_past_grace(self, recorded: Status) -> bool:
        """Return whether the job recorded its end more than ``grace`` seconds ago."""
        return recorded.state.is_final and (recorded.ended is None or self.now - recorded.ended > self.grace)


def read_status(run: Run) -> Status:
    """Return the status that the job recorded, or PENDING if it is unreadable (full disk, failed node)."""
    try:
        return run.status()
    except HidlError:
        return Status(State.PENDING)


def keep(recorded: Status, reason: str | None, *, unclear: bool = False) -> Decision:
    """Keep following the run because there is no new information."""
    state = State.RUNNING if recorded.state.is_final else recorded.state
    return Decision(Action.SHOW, replace(recorded, state=state, reason=reason), unclear)


def without_answer(recorded: Status, title: str, reason: str, last: Job | None, clock: Clock) -> Decision:
    """Determine a run's status while the scheduler does not respond.

    The scheduler's last response remains valid, and runs are only considered ended after a week.

    Args:
        recorded: Status that the job recorded.
        title: Name of the scheduler.
        reason: The reason why it does not respond.
        last: The job in the last response, which arrived at ``clock.asked``.
        clock: Times of the decision.
    """
    if recorded.state.is_final and recorded.ended is not None and clock.now - recorded.ended > _UNANSWERED_SECONDS:
        return Decision(Action.END, replace(recorded, reason=f"as recorded by the job; {title} did not respond"))
    if last is not None and last.state is State.PENDING and not _began_since(recorded, clock.asked):
        return Decision(Action.SHOW, Status(State.PENDING, reason=reason))
    if recorded.state.is_final:
        return keep(recorded, f"{reason}; the job recorded {recorded.state.value}")
    runs = last is not None and last.state is State.RUNNING
    return keep(replace(recorded, state=State.RUNNING) if runs else recorded, reason)


def without_job(recorded: Status, reason: str, clock: Clock) -> Decision:
    """Determine the status of a run whose job is unknown to the scheduler."""
    if clock.unclear_for < clock.grace:
        return keep(recorded, f"{reason}; waiting for the job to record its end", unclear=True)
    if recorded.state.is_final:  # FAILED or CANCELLED as observed by the script: there is no better source
        return Decision(Action.END, replace(recorded, reason="as recorded by the job"))
    return Decision(Action.END, replace(recorded, state=State.LOST, reason=reason))


def decide(recorded: Status, title: str, job: Job, never: str | None, clock: Clock) -> Decision:
    """Determine the status of a run whose job is known to the scheduler.

    Args:
        recorded: Status that the job recorded.
        title: Name of the scheduler.
        job: The job as reported by the scheduler.
        never: Reason why a pending job will never start, or None if it may start. It is ignored for a job that has
            already started once and is pending again after a preemption or a node failure.
        clock: Times of the decision.
    """
    if job.state is State.PENDING:
        refused = never if recorded.started is None else None
        return keep(recorded, None) if _began_since(recorded, clock.asked) else _waiting(job, refused)
    if job.state is State.RUNNING:
        return _running(recorded, job)
    if job.by_itself and job.state in (State.COMPLETED, State.FAILED):
        return _ended_by_itself(recorded, title, job, clock)
    return Decision(Action.END, replace(recorded, state=job.state, reason=job.reason or job.word))


def _waiting(job: Job, never: str | None) -> Decision:
    """Determine the status of a pending job. The status that it recorded in an earlier attempt is ignored."""
    if never is not None:
        return Decision(Action.REFUSE, Status(State.REFUSED, reason=never))
    return Decision(Action.SHOW, Status(State.PENDING, reason=job.reason or None))


def _running(recorded: Status, job: Job) -> Decision:
    """Determine the status of a running job.

    Even if its script has exited, the scheduler may still report why it ended, or requeue it.
    """
    began_again = job.started is not None and recorded.ended is not None and recorded.ended < job.started
    if began_again:
        return Decision(Action.SHOW, Status(State.RUNNING, reason=job.reason or None))
    reason = job.reason or ("the job is ending" if recorded.state.is_final else None)
    return Decision(Action.SHOW, replace(recorded, state=State.RUNNING, reason=reason))


def _began_since(recorded: Status, asked: float) -> bool:
    """Return whether the job recorded its start after the scheduler was queried."""
    return recorded.started is not None and recorded.started > asked - LAG_SECONDS


def _ended_by_itself(recorded: Status, title: str, job: Job, clock: Clock) -> Decision:
    """Determine the status of a job that ended by itself.

    The status that the job recorded takes precedence as soon as it is visible.
    """
    how = job.reason or f"{title} reports {job.word}"
    if recorded.state.is_final:
        return Decision(Action.END, replace(recorded, reason=how))
    recent = clock.unclear_for < clock.grace if job.ended is None else clock.now - job.ended < LAG_SECONDS
    if recent:
        running = replace(recorded, state=State.RUNNING, reason=f"{how}; waiting for the job to record its end")
        return Decision(Action.SHOW, running, unclear=True)
    state = State.FAILED if job.state is State.FAILED else State.LOST
    return Decision(Action.END, replace(recorded, state=state, reason=f"{how}, and the job left no record of its end"))

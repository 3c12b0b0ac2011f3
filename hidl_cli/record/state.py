"""Where a run is in its life, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """Where a run is in its life; the words are Slurm's, where Slurm has one.

    REFUSED: the scheduler took the job, and would never start it. LOST: it vanished without a word.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    REFUSED = "REFUSED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Does the run stay in this state?"""
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Status:
    """What is known of a run: ``step`` of ``steps`` (from 1), times in seconds since the epoch, its exit status.

    ``reason`` is what the scheduler gives as the reason of the state, for people.
    """

    state: State
    step: int = 0
    steps: int = 0
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    hosts: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long the job ran; None while it does."""
        return None if self.started is None or self.ended is None else self.ended - self.started

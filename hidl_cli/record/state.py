"""The states of a run and its status."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """The state of a run, in Slurm's words where Slurm has one.

    REFUSED: the scheduler accepted the job but would never start it. LOST: it disappeared without recording its end.
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
        """Is the state final?"""
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Status:
    """The status of a run: ``step`` of ``steps`` (from 1), times in seconds since the epoch, exit status.

    ``reason``: why the run is in this state, from the scheduler, for people. ``job``: the id of the job that wrote it.
    ``not_written``: why the job could not write files at its end (``No space left on device``), None if it could.
    """

    state: State
    step: int = 0
    steps: int = 0
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    hosts: tuple[str, ...] = ()
    reason: str | None = None
    job: str | None = None
    not_written: str | None = None

    @property
    def is_settled(self) -> bool:
        """Is this the end, whatever a scheduler says?

        Without a reason, any end but COMPLETED is the script's word alone: a scheduler may start the job again.
        """
        return self.state is State.COMPLETED or (self.state.is_final and self.reason is not None)

    @property
    def seconds(self) -> float | None:
        """The job's duration; None until it ends."""
        return None if self.started is None or self.ended is None else self.ended - self.started

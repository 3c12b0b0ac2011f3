"""Slurm's words for the state of a job, and what hidl makes of them. ExitCode says nothing: it is 0:0 on a time-out."""

from __future__ import annotations

from hidl_cli.record.state import State

_STATES = {
    State.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING UPDATE_DB EXPEDITING REVOKED",
    State.COMPLETED: "COMPLETED",
    State.FAILED: "FAILED LAUNCH_FAILED",
    State.CANCELLED: "CANCELLED",
    State.TIMEOUT: "TIMEOUT DEADLINE",
    State.NODE_FAIL: "NODE_FAIL BOOT_FAIL RECONFIG_FAIL",
    State.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    State.PREEMPTED: "PREEMPTED",
}
_BY_WORD = {word: state for state, words in _STATES.items() for word in words.split()}

#: Of several parts of one job (an array, a heterogeneous job) the first in this order speaks for all.
ORDER = (
    State.RUNNING,
    State.PENDING,
    State.NODE_FAIL,
    State.OUT_OF_MEMORY,
    State.TIMEOUT,
    State.PREEMPTED,
    State.FAILED,
    State.CANCELLED,
    State.COMPLETED,
)


def state_of(words: str) -> State:
    """The state that squeue, sacct or scontrol names: ``TIMEOUT``, ``CANCELLED by 1000``, ``COMPLETING+``.

    A word that this hidl does not know counts as RUNNING: a job ends only by a word that says so.
    """
    first = words.split(maxsplit=1)[0] if words.strip() else ""
    return _BY_WORD.get(first.rstrip("+").upper(), State.RUNNING)


def speaks_for_all(states: list[State]) -> int:
    """The place in ``states`` of the part that speaks for the whole job."""
    return min(range(len(states)), key=lambda place: ORDER.index(states[place]))

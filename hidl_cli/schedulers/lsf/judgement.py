"""How a run fares, from what its job wrote itself and what LSF says of the job.

What the job wrote (``status.json``) is the truth about how it ended by itself. LSF's state says why it was ended by
somebody else. LSF's exit status decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf.bjobs import Record

#: How long two sources may contradict each other, in seconds: LSF lags, and so do the caches of shared file systems.
GRACE_SECONDS = 60.0
#: How long a job may have no host at all before it counts as one that never starts: hosts come back after a reboot.
_NO_HOST_SECONDS = 600.0

#: LSF's words for a job that has not begun.
WAITING = {"PEND", "PROV", "WAIT", "PSUSP", "FWD_PEND"}
_RUNNING = {"RUN", "USUSP", "SSUSP", "UNKWN"}

_ENDED_BY = {
    State.TIMEOUT: ("RUNLIMIT", "CPULIMIT", "DEADLINE", "WINDOW"),
    State.OUT_OF_MEMORY: ("MEMLIMIT", "SWAP"),
    State.CANCELLED: (
        "OWNER",
        "ADMIN",
        "FORCE_OWNER",
        "FORCE_ADMIN",
        "BUCKET_KILL",
        "CHKPNT",
        "EXTERNAL_SIGNAL",
        "ORPHAN_SYSTEM",
    ),
    State.PREEMPTED: ("PREEMPT", "LOAD", "RC", "REQUEUE_OWNER", "REQUEUE_ADMIN", "REQUEUE_RC", "MC_RECALL"),
    State.NODE_FAIL: ("ZOMBIE", "RMS", "SLURM", "CSM_ALLOC", "KUBE", "REMOVE_HUNG_JOB"),
    State.FAILED: ("CWD_NOTEXIST", "DATA", "PRE_EXEC_FAIL", "PROCESSLIMIT", "THREADLIMIT", "OTHER"),
}
_STATE_OF = {f"TERM_{word}": state for state, words in _ENDED_BY.items() for word in words}

# Reasons for pending that no waiting changes, in LSF's words.
_NEVER = ("dependency condition invalid", "dependency condition never", "condition invalid or never satisfied")
_NO_HOST = "no suitable hosts"

_ABOUT = {
    "PSUSP": "suspended while it was pending",
    "USUSP": "suspended by its owner or an administrator",
    "SSUSP": "suspended by LSF",
    "UNKWN": "LSF has lost contact with the job's host",
    "PROV": "LSF is waking up its hosts",
}


@dataclass(frozen=True)
class Judgement:
    """The run's state; ``unclear``: the sources contradict each other, and time will tell."""

    state: State
    reason: str | None = None
    unclear: bool = False


def is_settled(status: Status) -> bool:
    """Is there nothing that LSF could add?

    A job that somebody ends takes itself for cancelled, or, where the launcher got the signal first, for failed, with
    whatever status that one left: only LSF knows that it was the time limit. Once that is known, a reason stands beside
    the state.
    """
    if status.state in (State.CANCELLED, State.FAILED):
        return status.reason is not None
    return status.state.is_final


def judge(status: Status, record: Record | None, *, pending: float, unclear: float) -> Judgement:
    """How the run fares.

    ``record``: what LSF says, None where it does not know the job. ``pending`` and ``unclear``: the seconds since the
    job was submitted, and since the two sources first contradicted each other (0: they do not, or only now).
    """
    if is_settled(status):
        return Judgement(status.state, status.reason)
    patient = unclear < GRACE_SECONDS
    if record is None:
        return _unknown(status, patient)
    if record.stat in WAITING:
        return _waiting(record, pending)
    if record.stat in _RUNNING:
        return _running(status, record, patient)
    if record.stat == "ZOMBI":
        return Judgement(State.NODE_FAIL, "ZOMBI: the job was killed while LSF could not reach its host")
    return _ended(status, record, patient)


def _unknown(status: Status, patient: bool) -> Judgement:
    if status.state.is_final:
        return Judgement(status.state, "LSF knows the job no more")
    if patient:
        return Judgement(status.state, "LSF does not know the job; it may do so again", unclear=True)
    return Judgement(State.LOST, "LSF does not know the job, and it left no word")


def _waiting(record: Record, pending: float) -> Judgement:
    """A job that had begun before was put back into the queue, and begins anew."""
    reason = ": ".join(part for part in (_ABOUT.get(record.stat), record.pend_reason) if part) or None
    words = record.pend_reason.lower()
    never = any(phrase in words for phrase in _NEVER) or (_NO_HOST in words and pending > _NO_HOST_SECONDS)
    return Judgement(State.REFUSED if never else State.PENDING, reason)


def _running(status: Status, record: Record, patient: bool) -> Judgement:
    if not status.state.is_final:
        return Judgement(State.RUNNING, _ABOUT.get(record.stat))
    if patient:
        return Judgement(State.RUNNING, "the job is ending", unclear=True)
    return Judgement(status.state, f"LSF still says {record.stat}")


def _ended(status: Status, record: Record, patient: bool) -> Judgement:
    word = record.exit_reason.split(":")[0].strip()
    if word.startswith("TERM_") and word != "TERM_UNKNOWN":
        return Judgement(_STATE_OF.get(word, State.FAILED), record.exit_reason)
    how = f"exit code {record.exit_code}" if record.exit_code else record.stat
    if status.state.is_final:
        return Judgement(status.state, f"LSF says {record.stat}, {how}" if record.exit_code else f"LSF says {how}")
    if patient:
        return Judgement(status.state, f"LSF says that the job has ended ({how}); its own word is not here yet", True)
    if record.stat == "EXIT":
        return Judgement(State.FAILED, f"LSF says that the job ended ({how}) without a word of its own")
    return Judgement(State.LOST, f"LSF says {record.stat}, but the job left no word of how it ended")

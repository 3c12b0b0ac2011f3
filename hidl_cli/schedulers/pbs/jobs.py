"""Jobs as PBS describes them, and what hidl makes of its words.

``qstat -f``: qstat(1B); exit statuses below 0: "Job Exit Status" in the PBS Professional Administrator's Guide,
and ``job.h`` of OpenPBS 23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from hidl_cli.record.state import State
from hidl_cli.schedulers.decision import Job, Never

_STATES = {State.PENDING: "QHWTM", State.RUNNING: "RESUB"}
_BY_LETTER = {letter: state for state, letters in _STATES.items() for letter in letters}

_LIMIT = re.compile(r"exceeded resource (\w+)")
_LIMITS = {"walltime": State.TIMEOUT, "cput": State.TIMEOUT} | dict.fromkeys(
    ("mem", "vmem", "pmem", "pvmem"), State.OUT_OF_MEMORY
)
#: Exit statuses by which PBS says why it ended a job, or could not start it.
_ENDED_BY = {
    -29: State.TIMEOUT,  # walltime
    -28: State.TIMEOUT,  # cput
    -27: State.OUT_OF_MEMORY,  # mem
    -26: State.OUT_OF_MEMORY,  # vmem
    -20: State.NODE_FAIL,  # a node of the job was lost
    -4: State.NODE_FAIL,  # MoM was restarted
    -5: State.NODE_FAIL,
    -6: State.NODE_FAIL,
}
_DELETED, _DEPENDENCY_FAILED = "91", "92"  # substates; 92 with an exit status is a usual end
_KEPT = re.compile(
    r"^    (job_state|substate|comment|Exit_status|Hold_Types|estimated\.start_time|history_timestamp|Variable_List)"
    r" = (.*)$",
    re.MULTILINE,
)
_DIRECTORY = re.compile(r"(?:^|,)PBS_O_WORKDIR=((?:\\.|[^,\\])*)")
_ABOUT = {"S": "suspended by PBS", "U": "suspended: its node is in use", "E": "the job is ending"}
_NEVER = "Can Never Run"


def compact(answer: str) -> list[str]:
    """Reduce the answer of ``qstat -f`` to what ``parse`` needs, a job a line.

    Its JSON is not used: of several jobs by name, OpenPBS 23 prints the first alone.
    """
    unwrapped = answer.replace("\n\t", "")
    return [
        json.dumps({"id": block.partition("\n")[0].strip(), **dict(_KEPT.findall(block))})
        for block in re.split(r"(?m)^Job Id: ", unwrapped)[1:]
    ]


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the lines of ``compact``."""
    return [_job(json.loads(line)) for line in lines]


def never_starts(job: Job) -> Never | None:
    """Return why the scheduler says that a job never starts; None if it may."""
    return Never(job.reason) if job.reason.startswith(_NEVER) else None


def _job(job: Mapping[str, str]) -> Job:
    """A job ends only by state F (finished) or X; any other unknown letter counts as running."""
    letter, id, comment = job.get("job_state", ""), job["id"], job.get("comment", "").strip()
    directory = _DIRECTORY.search(job.get("Variable_List", ""))
    mark = re.sub(r"\\(.)", r"\1", directory[1]) if directory else ""
    if letter not in ("F", "X"):
        state = _BY_LETTER.get(letter, State.RUNNING)
        reason = _waiting(job, letter, comment) if state is State.PENDING else _ABOUT.get(letter, "")
        return Job(id, state, letter, mark, reason)
    state, by_itself = _end(job, comment)
    reason = "" if state is State.COMPLETED else _why(job, comment)
    return Job(id, state, letter, mark, reason, float(job.get("history_timestamp", 0)), by_itself)


def _waiting(job: Mapping[str, str], letter: str, comment: str) -> str:
    held = {"u": "held by its owner", "o": "held by an operator", "s": "held by PBS, or for a dependency"}
    holds = [held[kind] for kind in job.get("Hold_Types", "n") if kind in held] if letter == "H" else []
    start = job.get("estimated.start_time")
    return ", ".join([*filter(None, [comment]), *holds, *([f"expected to start at {start}"] if start else [])])


def _end(job: Mapping[str, str], comment: str) -> tuple[State, bool]:
    """Return the final state, and whether the job came to it by itself."""
    status, limit = job.get("Exit_status"), _LIMIT.search(comment)
    if limit and limit[1] in _LIMITS:
        return _LIMITS[limit[1]], False
    if status is None or job.get("substate") == _DELETED:
        return State.CANCELLED, False
    if int(status) in _ENDED_BY:
        return _ENDED_BY[int(status)], False
    return (State.COMPLETED if status == "0" else State.FAILED), int(status) >= 0


def _why(job: Mapping[str, str], comment: str) -> str:
    if "Exit_status" not in job:
        failed = job.get("substate") == _DEPENDENCY_FAILED
        return "a job that it depends on did not end as required" if failed else "deleted before it started"
    how = re.sub(r"^Job run at .*? on \S+( and )?", "", comment)
    return f"PBS says Exit_status {job['Exit_status']}" if how in ("", "failed", "finished") else how

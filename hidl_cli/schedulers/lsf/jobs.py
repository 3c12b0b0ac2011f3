"""Jobs as LSF describes them, and what hidl makes of its words. Its exit status decides nothing.

``bjobs -o``: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=options-o; termination reasons:
https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=information-termination-reasons-displayed-by-bacct-bhist-bjobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hidl_cli.record.state import State
from hidl_cli.schedulers.decision import Job, Never

_NAMES = ("jobid", "stat", "exit_code", "exit_reason", "job_description", "pend_reason")
FIELDS = f"{' '.join(_NAMES)} delimiter='|'"
_RECORD = re.compile(r"\d+(\[\d+\])?\|")

_STATES = {
    State.PENDING: "PEND PROV WAIT PSUSP FWD_PEND",
    State.RUNNING: "RUN USUSP SSUSP UNKWN",
    State.NODE_FAIL: "ZOMBI",
    State.COMPLETED: "DONE PDONE",
    State.FAILED: "EXIT PERR",
}
_BY_WORD = {word: state for state, words in _STATES.items() for word in words.split()}

_ENDED_BY = {
    State.TIMEOUT: "RUNLIMIT CPULIMIT DEADLINE WINDOW",
    State.OUT_OF_MEMORY: "MEMLIMIT SWAP",
    State.CANCELLED: "OWNER ADMIN FORCE_OWNER FORCE_ADMIN BUCKET_KILL CHKPNT EXTERNAL_SIGNAL ORPHAN_SYSTEM",
    State.PREEMPTED: "PREEMPT LOAD RC REQUEUE_OWNER REQUEUE_ADMIN REQUEUE_RC MC_RECALL",
    State.NODE_FAIL: "ZOMBIE RMS SLURM CSM_ALLOC KUBE REMOVE_HUNG_JOB",
    State.FAILED: "CWD_NOTEXIST DATA PRE_EXEC_FAIL PROCESSLIMIT THREADLIMIT OTHER",
}
_BY_TERM = {f"TERM_{word}": state for state, words in _ENDED_BY.items() for word in words.split()}

_ABOUT = {
    "PSUSP": "suspended while pending",
    "USUSP": "suspended by its owner or an administrator",
    "SSUSP": "suspended by LSF",
    "UNKWN": "LSF has lost contact with the job's host",
    "PROV": "LSF is waking up its hosts",
    "ZOMBI": "ZOMBI: the job was killed while LSF could not reach its host",
}

# Pending reasons that no waiting changes, in LSF's words.
_NEVER = ("dependency condition invalid", "dependency condition never", "condition invalid or never satisfied")
_NO_HOST = "no suitable hosts"
#: Seconds without any host after which a job counts as one that never starts: hosts come back after a reboot.
_NO_HOST_SECONDS = 600.0


def parse(lines: Iterable[str]) -> list[Job]:
    """Parse the answer of ``bjobs``. A reason may span several lines, and hold the delimiter."""
    rows: list[list[str]] = []
    for line in lines:
        if _RECORD.match(line):
            rows.append(line.split("|", len(_NAMES) - 1))
        elif rows and len(rows[-1]) == len(_NAMES):
            rows[-1][-1] += f" {line.strip()}"
    cells = ([cell.strip() for cell in row] for row in rows if len(row) == len(_NAMES))
    shown = (["" if cell == "-" else cell.rstrip("; ") for cell in row] for row in cells)
    told = (dict(zip(_NAMES, row, strict=True)) for row in shown)
    return [_job(**row | {"job_description": row["job_description"] or "-"}) for row in told]


def parse_history(answer: str) -> list[Job]:
    """Parse the answer of ``bhist -l``: jobs that ended long ago. Its lines are wrapped anywhere, and indented."""
    unwrapped = re.sub(r"\n[ \t]+", "", answer)
    jobs = []
    for block in re.split(r"(?m)^(?=Job <)", unwrapped):
        job = re.match(r"Job <(\d+)>", block)
        if job is None:
            continue
        code = re.search(r"(?i)exited with exit code (\d+)", block)
        reason = re.search(r"Completed <exit>;\s*(TERM_[^;.\n]*)", block)
        if re.search(r"Done successfully|Completed <done>", block):
            jobs.append(_job(jobid=job[1], stat="DONE"))
        elif code or reason or re.search(r"Completed <exit>|Exited by signal", block):
            said = {"exit_code": code[1] if code else "", "exit_reason": reason[1].strip() if reason else ""}
            jobs.append(_job(jobid=job[1], stat="EXIT", **said))
    return [replace(job, ended=0.0) for job in jobs]


def never_starts(job: Job) -> Never | None:
    """Return why a pending job would never start; None if it may."""
    words = job.reason.lower()
    if any(phrase in words for phrase in _NEVER):
        return Never(job.reason)
    return Never(job.reason, after=_NO_HOST_SECONDS) if _NO_HOST in words else None


def _job(*, jobid: str, stat: str, **told: str) -> Job:
    """An unknown word counts as RUNNING: a job ends only by a word that says so."""
    state, mark = _BY_WORD.get(stat, State.RUNNING), told.get("job_description", "")
    if state in (State.COMPLETED, State.FAILED):
        reason, code = told.get("exit_reason", ""), told.get("exit_code")
        term = reason.split(":")[0].strip()
        if term.startswith("TERM_") and term != "TERM_UNKNOWN":
            return Job(jobid, _BY_TERM.get(term, State.FAILED), stat, mark, reason, by_itself=False)
        return Job(jobid, state, stat, mark, f"LSF says {stat}, exit code {code}" if code else "")
    pending = told.get("pend_reason") if state is State.PENDING else None
    return Job(jobid, state, stat, mark, ": ".join(filter(None, (_ABOUT.get(stat), pending))))

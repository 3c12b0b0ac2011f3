"""What LSF says of its jobs: one question for all of them, and its answer read.

``bjobs -o`` is described at https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=options-o; the termination reasons at
https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=information-termination-reasons-displayed-by-bacct-bhist-bjobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.schedulers.lsf.commands import call, said

_FIELDS = ("jobid", "stat", "exit_code", "exit_reason", "job_description", "pend_reason")
_RECORD = re.compile(r"\d+(\[\d+\])?\|")
_NONE_AT_ALL = re.compile(r"No (unfinished |matching |started |pending )?job found")


@dataclass(frozen=True)
class Record:
    """What LSF knows of one job; empty where it says nothing (``-``)."""

    id: str
    stat: str
    exit_code: str = ""
    exit_reason: str = ""
    description: str = ""
    pend_reason: str = ""


def ask() -> list[str]:
    """The lines of LSF's answer about all jobs of this user, also of those that ended within its CLEAN_PERIOD.

    Raises ``SchedulerUnreachable``.
    """
    completed = call("bjobs", "-a", "-noheader", "-o", f"{' '.join(_FIELDS)} delimiter='|'")
    lines = completed.stdout.splitlines()
    silent = completed.status == 0 and not (completed.stdout + completed.stderr).strip()
    if silent or parse(lines) or _NONE_AT_ALL.search(said(completed)):
        return lines
    raise SchedulerUnreachable(
        f"LSF does not say how the jobs fare: {said(completed)}",
        hint="the jobs go on; try again in a while, and see what `bjobs` and `lsid` say",
    )


def parse(lines: Iterable[str]) -> list[Record]:
    """Read what ``bjobs`` answered. A reason may go over several lines, and hold the delimiter."""
    rows: list[list[str]] = []
    for line in lines:
        if _RECORD.match(line):
            rows.append(line.split("|", len(_FIELDS) - 1))
        elif rows and len(rows[-1]) == len(_FIELDS):
            rows[-1][-1] += f" {line.strip()}"
    cells = ([cell.strip() for cell in row] for row in rows if len(row) == len(_FIELDS))
    return [Record(*("" if cell == "-" else cell.rstrip("; ") for cell in row)) for row in cells]


def history(id: str) -> Record | None:
    """What LSF's log files hold of a job that ``bjobs`` has forgotten; None where they do not tell how it ended."""
    return next(
        (record for record in parse_history(call("bhist", "-l", "-n", "0", id).stdout) if record.id == id), None
    )


def parse_history(answer: str) -> list[Record]:
    """Read what ``bhist -l`` answered: its lines are wrapped, anywhere, with spaces before the rest."""
    unwrapped = re.sub(r"\n[ \t]+", "", answer)
    records = []
    for block in re.split(r"(?m)^(?=Job <)", unwrapped):
        job = re.match(r"Job <(\d+)>", block)
        if job is None:
            continue
        code = re.search(r"(?i)exited with exit code (\d+)", block)
        reason = re.search(r"Completed <exit>;\s*(TERM_[^;.\n]*)", block)
        if re.search(r"Done successfully|Completed <done>", block):
            records.append(Record(job[1], "DONE"))
        elif code or reason or re.search(r"Completed <exit>|Exited by signal", block):
            records.append(Record(job[1], "EXIT", code[1] if code else "", reason[1].strip() if reason else ""))
    return records

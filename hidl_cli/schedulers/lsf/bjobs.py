"""What LSF says of its jobs: one question for all of them, and its answer read.

``bjobs -o`` is described at https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=options-o; the termination reasons at
https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=information-termination-reasons-displayed-by-bacct-bhist-bjobs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hidl_cli import process
from hidl_cli.errors import ProcessFailed, SchedulerUnreachable

_SECONDS = 30.0
_TRIES = {"LSB_NTRIES": "1"}  # LSF's commands wait for its daemons for ever unless told otherwise

_FIELDS = ("jobid", "stat", "exit_code", "exit_reason", "job_description", "pend_reason")
_RECORD = re.compile(r"\d+(\[\d+\])?\|")
_NONE_AT_ALL = re.compile(r"No (unfinished |matching |started |pending )?job found")
_NOT_FOUND = re.compile(r"Job <\S+> is not found")
_DOWN = re.compile(
    r"please wait|still trying|not responding|LSF is down|LIM is down|cannot connect|time(d)? ?out|library call"
    r"|cannot contact|connection refused",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Record:
    """What LSF knows of one job; empty where it says nothing (``-``)."""

    id: str
    stat: str
    exit_code: str = ""
    exit_reason: str = ""
    description: str = ""
    pend_reason: str = ""


def is_down(words: str) -> bool:
    """Are these a command's words about an LSF that does not answer?"""
    return bool(_DOWN.search(words))


def ask() -> list[Record]:
    """All jobs of this user, also those that ended within LSF's CLEAN_PERIOD; ``SchedulerUnreachable``."""
    completed = _run("bjobs", "-a", "-noheader", "-o", f"{' '.join(_FIELDS)} delimiter='|'")
    records = parse(completed.stdout)
    words = (completed.stderr + completed.stdout).strip()
    if records or _NONE_AT_ALL.search(words) or (completed.status == 0 and not words):
        return records
    raise SchedulerUnreachable(
        f"LSF does not say how the jobs fare: {_first_line(words) or f'bjobs ended with status {completed.status}'}",
        hint="the jobs go on; try again in a while, and see what `bjobs` and `lsid` say",
    )


def parse(answer: str) -> list[Record]:
    """Read what ``bjobs`` answered. A reason may go over several lines, and hold the delimiter."""
    rows: list[list[str]] = []
    for line in answer.splitlines():
        if _RECORD.match(line):
            rows.append(line.split("|", len(_FIELDS) - 1))
        elif rows and len(rows[-1]) == len(_FIELDS):
            rows[-1][-1] += f" {line.strip()}"
    cells = ([cell.strip() for cell in row] for row in rows if len(row) == len(_FIELDS))
    return [Record(*("" if cell == "-" else cell.rstrip("; ") for cell in row)) for row in cells]


def history(ids: Iterable[str]) -> list[Record]:
    """What LSF's log files hold of jobs that ``bjobs`` has forgotten; those of which nothing is known are left out."""
    completed = _run("bhist", "-l", "-n", "0", *ids)
    return parse_history(completed.stdout)


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


def kill(id: str) -> None:
    """End a job; one that has ended, or that LSF knows no more, is no error. Raises ``SchedulerUnreachable``."""
    completed = _run("bkill", id)
    words = (completed.stderr + completed.stdout).strip()
    gone = re.search(r"already finished|No matching job found|is not found", words)
    if completed.status != 0 and not gone:
        raise SchedulerUnreachable(
            f"LSF did not end job {id}: {_first_line(words) or f'bkill ended with status {completed.status}'}",
            hint=f"the job may go on; try again in a while, or `bkill {id}`",
        )


def environment(variables: dict[str, str]) -> dict[str, str]:
    """The variables, and what makes LSF's commands give up where LSF does not answer."""
    return variables | _TRIES


def _first_line(words: str) -> str:
    return next((line.strip() for line in words.splitlines() if line.strip()), "")


def _run(*command: str) -> process.Completed:
    try:
        return process.run(command, env=environment(dict(os.environ)), timeout=_SECONDS, check=False)
    except ProcessFailed as error:
        raise SchedulerUnreachable(
            f"LSF does not answer: {command[0]}: {_first_line(error.output)}",
            hint="try again in a while; `lsid` says whether LSF can be reached from here",
        ) from error

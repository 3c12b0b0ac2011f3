"""LSF's own programs as hidl calls them: with a time limit, and without variables that change their answers."""

from __future__ import annotations

import re

from hidl_cli.errors import HidlError
from hidl_cli.schedulers.programs import NoAnswer, Programs, complaint, whole_lines

PROGRAMS = Programs(
    # The job that hidl itself may run in, and what makes bsub silent.
    dropped=(
        "BSUB_QUIET",
        "HIDL_RUN_ID",
        "LSB_BATCH_JID",
        "LSB_DJOB_HOSTFILE",
        "LSB_HOSTS",
        "LSB_INTERACTIVE",
        "LSB_JOBID",
        "LSB_JOBINDEX",
        "LSB_MCPU_HOSTS",
    ),
    # LSF's commands wait for its daemons for ever, unless they are told how often to try.
    added={"LSB_NTRIES": "1"},
    unreachable=re.compile(
        r"please wait|still trying|not responding|is down|cannot connect|cannot contact|connection refused"
        r"|timed? ?out|library call",
        re.IGNORECASE,
    ),
    waiting=re.compile(r"please wait|still trying|retrying in", re.IGNORECASE),
)
call = PROGRAMS.call

_JOB = re.compile(r"^\d+(\[\d+\])?\|", re.MULTILINE)
_NO_JOB = re.compile(r"No (unfinished |matching |started |pending )?job found")


def kill(id: str) -> None:
    """End a job; no error if it has ended, or LSF knows it no more."""
    completed = call("bkill", id)
    gone = re.search(r"already finished|No matching job found|is not found", completed.stdout + completed.stderr)
    if completed.status != 0 and not gone:
        raise HidlError(f"LSF did not end job {id}: {complaint(completed)}", hint=f"see what `bkill {id}` says")


def history(id: str) -> str:
    """Return what ``bhist`` says of a job from LSF's log files. Raises ``NoAnswer``."""
    return call("bhist", "-l", "-n", "0", id).stdout


def describe(id: str, fields: str) -> list[str]:
    """Return the lines of ``bjobs`` about one job; none if LSF says that it does not know it. Raises ``NoAnswer``."""
    completed = call("bjobs", "-a", "-noheader", "-o", fields, id)
    if re.search(rf"Job <{id}> is not found", completed.stdout + completed.stderr):
        return []
    if not _JOB.search(completed.stdout):
        raise NoAnswer(complaint(completed))
    return whole_lines(completed)


def query(fields: str) -> list[str]:
    """Return the lines of ``bjobs`` about all of the user's jobs, also those that ended within CLEAN_PERIOD.

    Raises ``NoAnswer``.
    """
    completed = call("bjobs", "-a", "-noheader", "-o", fields)
    printed = completed.stdout + completed.stderr
    silent = completed.status == 0 and not printed.strip()
    if silent or _JOB.search(completed.stdout) or _NO_JOB.search(printed):
        return whole_lines(completed)
    raise NoAnswer(complaint(completed))

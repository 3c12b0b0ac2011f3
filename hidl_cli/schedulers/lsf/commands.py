"""LSF's own commands as hidl calls them: always with a time limit, and free of variables that change their answers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import MissingPrecondition, ProcessFailed, SchedulerUnreachable

QUESTION_SECONDS = 30.0
SUBMIT_SECONDS = 120.0

#: LSF's commands wait for its daemons for ever, unless they are told how often to try.
_TRIES = {"LSB_NTRIES": "1"}
#: The job that hidl itself may run in, and what makes bsub silent.
_DROPPED = {
    "BSUB_QUIET",
    "BSUB_QUIET2",
    "HIDL_RUN_ID",
    "LSB_BATCH_JID",
    "LSB_DJOB_HOSTFILE",
    "LSB_HOSTS",
    "LSB_INTERACTIVE",
    "LSB_JOBID",
    "LSB_JOBINDEX",
    "LSB_MCPU_HOSTS",
}
_DOWN = re.compile(
    r"please wait|still trying|not responding|is down|cannot connect|cannot contact|connection refused"
    r"|timed? ?out|library call",
    re.IGNORECASE,
)


def call(*command: str, timeout: float | None = None, cwd: Path | None = None) -> process.Completed:
    """Run one of LSF's commands and return what it said, whatever its exit status.

    Raises ``SchedulerUnreachable`` where it had no answer within ``timeout`` seconds (None: the time of a question),
    ``MissingPrecondition`` where it is not there.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED} | _TRIES
    try:
        return process.run(command, cwd=cwd, env=environment, timeout=timeout or QUESTION_SECONDS, check=False)
    except ProcessFailed as error:
        if error.status == 127:
            raise MissingPrecondition(
                f"{command[0]} cannot be started: {error.output}",
                hint="run hidl where LSF's commands are on PATH: on a login node",
            ) from error
        raise unreachable(f"LSF does not answer: {command[0]}: {' '.join(error.output.split())}") from error


def said(completed: process.Completed) -> str:
    """What a command printed, on one line: what it complained about first."""
    words = " ".join(f"{completed.stderr}\n{completed.stdout}".split())
    return words or f"{completed.command[0]} ended with status {completed.status}"


def unreachable(words: str) -> SchedulerUnreachable:
    """The error that says so, with LSF's words."""
    return SchedulerUnreachable(
        words if words.startswith("LSF ") else f"LSF does not answer: {words}",
        hint="try again in a while; `lsid` says whether LSF can be reached from here",
    )


def is_down(words: str) -> bool:
    """Are these a command's words about an LSF that does not answer?"""
    return bool(_DOWN.search(words))


def cluster() -> str | None:
    """The name of the cluster whose commands these are; None where LSF does not tell it."""
    named = re.search(r"My cluster name is (\S+)", call("lsid").stdout)
    return named[1] if named else None


def kill(id: str) -> None:
    """End a job; one that has ended, or that LSF knows no more, is no error. Raises ``SchedulerUnreachable``."""
    completed = call("bkill", id)
    gone = re.search(r"already finished|No matching job found|is not found", said(completed))
    if completed.status != 0 and not gone:
        raise SchedulerUnreachable(
            f"LSF did not end job {id}: {said(completed)}",
            hint=f"the job may go on; try again in a while, or `bkill {id}`",
        )

"""Slurm's own programs as hidl calls them: with a time limit, and free of variables that change their answers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import ProcessFailed
from hidl_cli.process import Completed

PING_SECONDS = 5.0
QUESTION_SECONDS = 30.0
ACCOUNTING_SECONDS = 5.0
SUBMIT_SECONDS = 120.0

#: Variables that say where Slurm is and who asks; all others of these prefixes belong to an enclosing job, or are
#: options in disguise.
_KEPT = frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_UMASK"))
_DROPPED = (
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "SBATCH_",
    "SALLOC_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "SCONTROL_",
    "SCANCEL_",
    "PMI_",
    "PMIX_",
)

_AWAY = re.compile(
    r"unable to contact slurm controller|timed out|zero bytes were|connection refused|connect failure|not respond"
    r"|transport endpoint|standby mode|configuration source|communication|munge|authentication|temporarily unable"
    r"|unable to accept|not in service|network is unreachable|no route to host",
    re.IGNORECASE,
)


class NoAnswer(Exception):
    """Nobody answered: why, in words for people."""


class NoProgram(NoAnswer):
    """Slurm's programs are not on PATH."""


def environment(keep: Collection[str] = ()) -> dict[str, str]:
    """The environment as it is, but for what an enclosing job or a default of the user's would put in the way."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name in keep or not name.startswith(_DROPPED)
    }


def call(
    *command: str | Path, timeout: float = QUESTION_SECONDS, cwd: Path | None = None, keep: Collection[str] = ()
) -> Completed:
    """Run one of Slurm's programs and return what it said, whatever its exit status.

    Raises ``NoAnswer`` where it took more than ``timeout`` seconds, or says that nobody answered it; ``NoProgram``
    where it is not there.
    """
    try:
        completed = process.run(command, timeout=timeout, check=False, cwd=cwd, env=environment(keep))
    except ProcessFailed as error:
        if error.status == -signal.SIGKILL:
            raise NoAnswer(f"{command[0]} had no answer within {timeout:g} s") from error
        raise NoProgram(f"{command[0]} cannot be started: {error.output}") from error
    if completed.status != 0 and _AWAY.search(completed.stderr):
        raise NoAnswer(said(completed))
    return completed


def said(completed: Completed) -> str:
    """What a program complained about, without its own name before each line; its output where it did not complain."""
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()
    short = [re.sub(r"^(\w+: )?(error|fatal): ", "", line).strip() for line in lines]
    return "; ".join(line for line in short[-5:] if line) or f"status {completed.status}"


def ping() -> None:
    """Return if a controller answers; raises ``NoAnswer``, within seconds, if none does.

    ``scontrol ping`` tells in no time where nothing listens, for which other programs need ten to twenty seconds.
    """
    completed = call("scontrol", "ping", timeout=PING_SECONDS)
    if " is UP" in completed.stdout or (completed.status == 0 and "DOWN" not in completed.stdout):
        return
    first = (completed.stdout.strip() or said(completed)).splitlines()[0]
    raise NoAnswer(first)


def keys(text: str) -> dict[str, str]:
    """Read ``Key=value`` words, as ``scontrol show`` prints them; a value ends at the next key."""
    return dict(re.findall(r"([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", text, re.MULTILINE))


def me() -> int:
    """The user whose jobs hidl asks for."""
    return os.getuid()


def partition(name: str) -> dict[str, str]:
    """What ``scontrol show partition`` says of one; empty where nothing is to be had."""
    return _shown("scontrol", "show", "partition", name)


def own_cluster() -> str | None:
    """The name of the cluster whose commands these are; None where it is not to be had."""
    return _shown("scontrol", "show", "config").get("ClusterName")


def _shown(*command: str) -> dict[str, str]:
    try:
        completed = call(*command, timeout=PING_SECONDS)
    except NoAnswer:
        return {}
    return keys(re.sub(r"[ \t]+= ?", "=", completed.stdout)) if completed.status == 0 else {}

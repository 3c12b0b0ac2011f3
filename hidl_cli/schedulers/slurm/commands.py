"""Slurm's own programs as hidl calls them, and the name of the cluster that they speak to."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import write_text
from hidl_cli.schedulers.programs import NoAnswer, Programs, complaint
from hidl_cli.site import hidl_cluster

PING_SECONDS = 5.0
ACCOUNTING_SECONDS = 5.0
_NAME_VALID_SECONDS = 86400.0
_LEARNED: dict[Path, str] = {}

PROGRAMS = Programs(
    kept=frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_UMASK")),
    dropped=(
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
    ),
    unreachable=re.compile(
        r"unable to contact slurm controller|timed out|zero bytes were|connection refused|connect failure|not respond"
        r"|transport endpoint|standby mode|configuration source|communication|munge|authentication"
        r"|temporarily unable|unable to accept|not in service|network is unreachable|no route to host",
        re.IGNORECASE,
    ),
    waiting=re.compile(r"sleeping and retrying|still trying|retrying connection", re.IGNORECASE),
    variables=hidl_cluster.environment,
)
call = PROGRAMS.call


def ping() -> None:
    """Return if a controller answers; raises ``NoAnswer``, within seconds, if none does.

    ``scontrol ping`` returns at once if nothing listens, for which other programs need ten to twenty seconds.
    """
    completed = call("scontrol", "ping", timeout=PING_SECONDS)
    if " is UP" in completed.stdout or (completed.status == 0 and "DOWN" not in completed.stdout):
        return
    raise NoAnswer((completed.stdout.strip() or complaint(completed)).splitlines()[0])


def accounting_answers() -> bool:
    """Whether ``sacct`` answers; without it ReFrame's scheduler `slurm` fails after three tries."""
    try:
        completed = call("sacct", "--noheader", "--starttime=now", "--format=jobid", timeout=ACCOUNTING_SECONDS)
    except NoAnswer:
        return False
    return completed.status == 0


def keys(text: str) -> dict[str, str]:
    """Parse ``Key=value`` words, as ``scontrol show`` prints them; a value ends at the next key."""
    return dict(re.findall(r"([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", text, re.MULTILINE))


def partition(name: str) -> dict[str, str]:
    """Return what ``scontrol show partition`` says; empty if unavailable."""
    return _shown("scontrol", "show", "partition", name)


@cache
def this_cluster() -> str | None:
    """Return the name of the cluster; None if Slurm does not answer and has not within the last day."""
    file = _file_of_name()
    if file in _LEARNED:
        return _LEARNED[file]
    with suppress(OSError):
        if time.time() - file.stat().st_mtime < _NAME_VALID_SECONDS:
            return file.read_text(encoding="utf-8")
    return _ask_for_name(file)


def learn_cluster() -> None:
    """Ask Slurm for the cluster's name, which ``this_cluster`` returns from now on."""
    file = _file_of_name()
    name = _ask_for_name(file)
    if name is not None:
        _LEARNED[file] = name
        this_cluster.cache_clear()


def _file_of_name() -> Path:
    """Return where the name is kept: clusters may share a user's home, and PATH may lead to another's programs."""
    variables = hidl_cluster.environment()
    programs = shutil.which("scontrol", path=variables.get("PATH")) or ""
    parts = [platform.node(), programs, *(variables.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return paths.user_state() / "slurm" / f"cluster-{key}"


def _ask_for_name(file: Path) -> str | None:
    name = _shown("scontrol", "show", "config").get("ClusterName")
    if name is not None:
        with suppress(OSError):
            write_text(file, name)
    return name


def _shown(*command: str) -> dict[str, str]:
    try:
        completed = call(*command, timeout=PING_SECONDS)
    except NoAnswer:
        return {}
    return keys(re.sub(r"[ \t]+= ?", "=", completed.stdout)) if completed.status == 0 else {}

"""The name of the cluster that this machine's Slurm commands speak to. Clusters may share a user's home."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import write_text
from hidl_cli.schedulers.slurm import programs

_VALID_SECONDS = 86400.0


@cache
def this_cluster() -> str | None:
    """Its name; None where Slurm does not answer and has not told it within the last day."""
    file = _file()
    with suppress(OSError):
        if time.time() - file.stat().st_mtime < _VALID_SECONDS:
            return file.read_text(encoding="utf-8")
    name = programs.own_cluster()
    if name is not None:
        with suppress(OSError):
            write_text(file, name)
    return name


def _file() -> Path:
    """Where it is kept for this machine and this configuration of Slurm."""
    key = f"{platform.node()}\0{os.environ.get('SLURM_CONF', '')}\0{os.environ.get('SLURM_CLUSTERS', '')}"
    return paths.user_state() / "slurm" / f"cluster-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

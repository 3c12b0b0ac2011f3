"""Processes of jobs on this machine: told apart from later ones of the same number, and found by their run's id."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def birth(pid: int) -> str | None:
    """Return what tells a process from others of the same number; None if there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def kill_all(run: str) -> None:
    """Kill every process that has the run's id in its environment: ranks have sessions of their own."""
    mark = f"HIDL_RUN_ID={run}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)

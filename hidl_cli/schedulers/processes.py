"""Processes of jobs on this machine: told apart from later ones of the same number, and found by their environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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


def space() -> str:
    """Return the name of the process numbers that are seen from here: a container has its own."""
    return str(Path("/proc/self/ns/pid").readlink())


def kill_run(run: str) -> None:
    """Kill every process that has the run's id in its environment: ranks have sessions of their own."""
    _kill("HIDL_RUN_ID", lambda value: value == run)


def kill_job(directory: Path) -> None:
    """Kill every process of the job in that directory, by its environment; a copy's job has the same run id."""

    def is_there(value: str) -> bool:
        with suppress(OSError):
            return Path(value).parent.samefile(directory)
        return False

    _kill("HIDL_FINDINGS", is_there)


def _kill(variable: str, fits: Callable[[str], bool]) -> None:
    begin = f"{variable}=".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            values = [each for each in environment.read_bytes().split(b"\0") if each.startswith(begin)]
            if values and fits(os.fsdecode(values[-1].removeprefix(begin))):
                os.kill(int(environment.parent.name), signal.SIGKILL)

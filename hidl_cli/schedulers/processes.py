"""Processes of jobs on this machine: told apart from later ones of the same number, and found by their environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
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
    _kill(of_run(run))


def of_run(run: str) -> Iterator[int]:
    """Yield the numbers of the processes that ``kill_run`` kills."""
    return _with_variable("HIDL_RUN_ID", lambda value: value == run)


def kill_job(directory: Path) -> None:
    """Kill every process of the job in that directory, by its environment; a copy's job has the same run id."""

    def is_there(value: str) -> bool:
        with suppress(OSError):
            return Path(value).parent.samefile(directory)
        return False

    _kill(_with_variable("HIDL_FINDINGS", is_there))


def _kill(pids: Iterator[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _with_variable(variable: str, fits: Callable[[str], bool]) -> Iterator[int]:
    begin = f"{variable}=".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            values = [each for each in environment.read_bytes().split(b"\0") if each.startswith(begin)]
            if values and fits(os.fsdecode(values[-1].removeprefix(begin))):
                yield int(environment.parent.name)

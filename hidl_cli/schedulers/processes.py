"""Processes of jobs on this machine: told apart from later ones of the same number, and found by their environment."""

from __future__ import annotations

import errno
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
    _kill("HIDL_RUN_ID", lambda value: value == run)


def of_run(run: str) -> Iterator[int]:
    """Yield the numbers of the processes that ``kill_run`` kills."""
    return _with_variable("HIDL_RUN_ID", lambda value: value == run)


def kill_job(directory: Path) -> None:
    """Kill every process of the job in that directory, by its environment; a copy's job has the same run id."""

    def is_there(value: str) -> bool:
        with suppress(OSError):
            return Path(value).parent.samefile(directory)
        return False

    _kill("HIDL_FINDINGS", is_there)


def send(pid: int, number: signal.Signals, fits: Callable[[], bool]) -> None:
    """Send a signal to a process of this user if ``fits()``; spare other users' processes, even as root.

    The process is opened before ``fits`` looks at it, so that a later process of the same number gets no signal.
    """
    with suppress(OSError):
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _user(pid) == os.getuid() and fits():
                _send(process, pid, number)
        finally:
            os.close(process)


def _send(process: int, pid: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(process, number)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        os.kill(pid, number)  # before Linux 5.1


def _user(pid: int) -> int | None:
    """Return the process's real uid, which a set-uid program keeps."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return None


def _kill(variable: str, fits: Callable[[str], bool]) -> None:
    for pid in _with_variable(variable, fits):
        send(pid, signal.SIGKILL, lambda pid=pid: _has(pid, variable, fits))  # type: ignore[misc]


def _with_variable(variable: str, fits: Callable[[str], bool]) -> Iterator[int]:
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        if _has(pid, variable, fits) and _user(pid) == os.getuid():
            yield pid


def _has(pid: int, variable: str, fits: Callable[[str], bool]) -> bool:
    begin = f"{variable}=".encode()
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        values = [each for each in environment if each.startswith(begin)]
        return bool(values) and fits(os.fsdecode(values[-1].removeprefix(begin)))
    return False

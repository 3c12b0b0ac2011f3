"""Which processes belong to a cluster: each has the cluster's directory and its own role in its environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = "HIDL_CLUSTER_DIRECTORY"
_ROLE = "HIDL_CLUSTER_ROLE"
_BECOMES = 5.0  # seconds that a process may take to become its program, on a busy machine


@dataclass(frozen=True)
class Process:
    """A living process, by this machine's pid."""

    pid: int
    parent: int
    name: str
    command: str


def environment(directory: Path, role: str) -> dict[str, str]:
    """Whole environment of a cluster's process; holds no user variables."""
    return plain_environment() | {_DIRECTORY: str(directory), _ROLE: role}


def plain_environment() -> dict[str, str]:
    """Environment of processes on nodes that have no mark."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "PATH": path,
        "HOME": str(Path("~root").expanduser()),
        "LANG": "C.UTF-8",
        "USER": "root",
        "SHELL": "/bin/bash",
    }


def find(directory: Path) -> dict[str, list[int]]:
    """The living processes of the cluster in ``directory``: their pids by role.

    A daemon that goes into the background by ending, and leaving its work to a child, is not missed.
    """
    found: dict[str, list[int]] = {}
    for pid, of, role in _marked():
        if of == str(directory):
            found.setdefault(role, []).append(pid)
    return found


def directories() -> list[str]:
    """Those of all clusters on this machine that have living processes."""
    return sorted({directory for _, directory, _ in _marked()})


def pid_1_of_its_namespace(pids: Iterable[int]) -> int | None:
    """The one of ``pids`` that is pid 1 of a namespace below this one."""
    for pid in pids:
        numbers = next((line.split()[1:] for line in _status(pid) if line.startswith("NSpid:")), [])
        if len(numbers) > 1 and numbers[-1] == "1":
            return pid
    return None


def namespace_members(init: int) -> list[Process]:
    """All processes in the pid namespace of ``init``, with it."""
    namespace = _namespace(init)
    if namespace is None:
        return []
    pids = [pid for pid in _pids_until_none_is_new() if _namespace(pid) == namespace]
    return [process for pid in pids if (process := _process(pid))]


def end(pids: Iterable[int], number: signal.Signals, seconds: float) -> None:
    """Send the signal, wait, and kill what is left after ``seconds``."""
    left = list(pids)
    for pid in left:
        _kill(pid, number)
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in left if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        _kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    state = next((line.split()[1] for line in _status(pid) if line.startswith("State:")), "X")
    return state not in ("Z", "X")


def _process(pid: int) -> Process | None:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in _status(pid))}
    if not status or status["State"][0] in "ZX":
        return None
    words = _read(f"/proc/{pid}/cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")
    return Process(pid, int(status["PPid"]), status["Name"], " ".join(words))


def _marked() -> Iterator[tuple[int, str, str]]:
    """The pid of each living process of a cluster, the cluster's directory, and the process's role."""
    for pid in _pids_until_none_is_new():
        lines = os.fsdecode(_environ(pid)).split("\0")
        variables = dict(line.partition("=")[::2] for line in lines)
        if directory := variables.get(_DIRECTORY):
            yield pid, directory, variables.get(_ROLE, "")


def _environ(pid: int) -> bytes:
    """What it was started with; nothing for one that has ended, and for a thread of the kernel.

    While execve(2) is at work a process has neither this nor a command line.
    """
    deadline = time.monotonic() + _BECOMES
    while not (found := _read(f"/proc/{pid}/environ")) and _has_executable(pid) and time.monotonic() < deadline:
        if _read(f"/proc/{pid}/cmdline"):  # it has both now, or was started with none
            return _read(f"/proc/{pid}/environ")
        time.sleep(0.001)
    return found


def _has_executable(pid: int) -> bool:
    try:
        return bool(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115 - a Path for each costs
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - a Path for each costs


def _pids_until_none_is_new() -> Iterator[int]:
    """All pids, including those created during the listing: it may name only a parent that ends unread."""
    seen: set[int] = set()
    while new := [pid for pid in _pids() if pid not in seen]:
        yield from new
        seen.update(new)


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - as above
    except OSError:
        return None


def _status(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return b""


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

"""Processes of a cluster: each has the cluster's directory, its own role and the cluster's key in its environment.

Any user can start a process with such variables, so a mark counts only if the process belongs to this user, in this
user namespace, and has the key. The key is in a file that root alone can read, as is the environment of root's
processes; no job gets it.
"""

from __future__ import annotations

import os
import secrets
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.documents import write_text
from hidl_twin.entry import OpenProcess, open_identified
from hidl_twin.layout import RUNTIME, make_runtime_directory, runtime_directory

_DIRECTORY = "HIDL_CLUSTER_DIRECTORY"
_ROLE = "HIDL_CLUSTER_ROLE"
_KEY = "HIDL_CLUSTER_KEY"
_BECOMES = 5.0  # seconds that a process may take to become its program, on a busy machine


@dataclass(frozen=True)
class Process:
    """A living process, by this machine's pid."""

    pid: int
    parent: int
    name: str
    command: str


@dataclass(frozen=True)
class Recorded:
    """A process whose namespaces can be entered. ``identity``: see ``OpenProcess.identity``."""

    pid: int
    identity: str


def environment(directory: Path, role: str) -> dict[str, str]:
    """Whole environment of a cluster's process; holds no user variables."""
    return plain_environment() | {_DIRECTORY: str(directory), _ROLE: role, _KEY: _made_key(directory)}


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
    for process, of, role in _marked():
        if of == str(directory) and _is_ours(process, of):
            found.setdefault(role, []).append(process.pid)
    return found


def strangers(directory: Path) -> list[str]:
    """Describe the processes that claim to belong to the cluster in ``directory``, but do not."""
    return [
        f"process {process.pid} of user {user}, which claims to be the cluster's"
        for process, of, _ in _marked()
        if of == str(directory) and not _is_ours(process, of) and (user := process.user) is not None
    ]


def record(directory: Path, role: str, pid: int) -> Recorded:
    """Record the process with this role, for others to enter: a node's pid 1, or the switch."""
    with OpenProcess(pid) as process:
        found = Recorded(pid, process.identity)
    write_text(make_runtime_directory(directory) / f"{role}.process", found.identity, mode=0o600)
    return found


def recorded(directory: Path, role: str) -> Recorded | None:
    """Return the recorded process; None if it has ended."""
    file = runtime_directory(directory) / f"{role}.process"
    identity = _trusted_text(file)
    process = open_identified(identity) if identity else None
    if process is None:
        return None
    with process:
        return Recorded(process.pid, identity) if _is_ours(process, str(directory)) else None


def forget(directory: Path) -> None:
    """Remove the cluster's key, lock and records, once none of its processes is left."""
    place = runtime_directory(directory)
    if place.is_dir() and not place.is_symlink() and not find(directory):
        for file in place.iterdir():
            file.unlink()
        with suppress(OSError):  # another hidl waits for the lock
            place.rmdir()


def directories() -> list[str]:
    """Those of all clusters on this machine that have living processes."""
    return sorted({directory for process, directory, _ in _marked() if _is_ours(process, directory)})


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
    """Send the signal, wait, and kill what is left after ``seconds``; spare processes that belong to no cluster."""
    with ExitStack() as stack:
        left = [stack.enter_context(process) for pid in pids if (process := _ours(pid))]
        for process in left:
            process.send(number)
        deadline = time.monotonic() + seconds
        while (left := [process for process in left if process.is_alive]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:
            process.send(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(process.is_alive for process in left) and time.monotonic() < deadline:
            time.sleep(0.02)


def _ours(pid: int) -> OpenProcess | None:
    """Open a process of any cluster of this user; None if it has ended or is another one."""
    try:
        process = OpenProcess(pid)
    except OSError:
        return None
    if (directory := _variables(process).get(_DIRECTORY)) and _is_ours(process, directory):
        return process
    process.close()
    return None


def _is_ours(process: OpenProcess, directory: str) -> bool:
    """Whether the cluster in ``directory`` started the process; any user can choose the variables of its own ones."""
    if not process.is_own:
        return False
    if os.geteuid() != 0:
        return True
    key = _trusted_text(runtime_directory(Path(directory)) / "key") if directory.startswith("/") else ""
    return bool(key) and _variables(process).get(_KEY) == key


def _made_key(directory: Path) -> str:
    """The cluster's key, created if missing; empty for a user other than root, who has no clusters."""
    if os.geteuid() != 0:
        return ""
    file = make_runtime_directory(directory) / "key"
    if not _trusted_text(file):
        write_text(file, secrets.token_hex(32), mode=0o600)
    return _trusted_text(file)


def _trusted_text(file: Path) -> str:
    """The content of a file below ``RUNTIME`` if root alone could have written it, else nothing."""
    try:
        for path in (RUNTIME, file.parent, file):
            status = path.lstat()
            if status.st_uid != 0 or status.st_mode & 0o022 or stat.S_ISLNK(status.st_mode):
                return ""
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _process(pid: int) -> Process | None:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in _status(pid))}
    if not status or status["State"][0] in "ZX":
        return None
    words = _read(f"/proc/{pid}/cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")
    return Process(pid, int(status["PPid"]), status["Name"], " ".join(words))


def _marked() -> Iterator[tuple[OpenProcess, str, str]]:
    """Each living process with marks, true or not: the directory and the role that it claims."""
    for pid in _pids_until_none_is_new():
        try:
            process = OpenProcess(pid)
        except OSError:
            continue
        with process:
            variables = _variables(process)
            if directory := variables.get(_DIRECTORY):
                yield process, directory, variables.get(_ROLE, "")


def _variables(process: OpenProcess) -> dict[str, str]:
    """The environment that a process was started with; empty for one that has ended, and for a thread of the kernel.

    While execve(2) is at work a process has neither an environment nor a command line.
    """
    deadline = time.monotonic() + _BECOMES
    while not (found := process.read("environ")) and process.has("exe") and time.monotonic() < deadline:
        if process.read("cmdline"):  # it has both now, or was started with none
            found = process.read("environ")
            break
        time.sleep(0.001)
    if _DIRECTORY.encode() not in found:
        return {}
    return dict(line.partition("=")[::2] for line in os.fsdecode(found).split("\0"))


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

"""Enter a process's namespaces: ``entry.py IDENTITY KINDS DIRECTORY COMMAND...``, run by root as a script.

A process is opened once, through its directory in /proc, and checked and entered through that descriptor, so that a
later process with the same number is never mistaken for it. The module imports the standard library only, because it
runs without hidl's packages, and before it enters, because the node's files could differ.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe imports it, within the node
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

#: The namespaces of a node, in the order in which they are entered.
KINDS = ("ipc", "uts", "net", "pid", "mnt")


class OpenProcess:
    """A process of this machine; ``ProcessLookupError`` if there is none of this number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error

    def __enter__(self) -> OpenProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._directory)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a file of the process's directory in /proc."""
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._directory)

    def read(self, name: str) -> bytes:
        """Return the content of a file of the directory; nothing if it cannot be read."""
        try:
            with os.fdopen(self.open(name), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def has(self, name: str) -> bool:
        """Return whether a link of the directory can be read and leads somewhere."""
        try:
            return bool(os.readlink(name, dir_fd=self._directory))
        except OSError:
            return False

    def namespace(self, kind: str) -> int | None:
        """Return the inode of a namespace."""
        try:
            return os.stat(f"ns/{kind}", dir_fd=self._directory).st_ino
        except OSError:
            return None

    @property
    def status(self) -> dict[str, list[str]]:
        """Words of /proc/PID/status by key; empty if the process has ended."""
        lines = self.read("status").decode("utf-8", "replace").splitlines()
        return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended (a zombie has)."""
        return self.status.get("State", ["X"])[0] not in ("Z", "X")

    @property
    def user(self) -> int | None:
        """The real uid; None if the process has ended."""
        uids = self.status.get("Uid")
        return int(uids[0]) if uids else None

    @property
    def is_own(self) -> bool:
        """Whether all its uids are this process's, in the same user namespace: root of another one is nobody here."""
        uids = {int(uid) for uid in self.status.get("Uid", [])}
        return uids == {os.geteuid()} and self.namespace("user") == Path("/proc/self/ns/user").stat().st_ino

    @property
    def identity(self) -> str:
        """Pid, start time and namespaces, as one word: no other process has the same."""
        start = self.read("stat").rpartition(b")")[2].split()[19:20]
        namespaces = [self.namespace(kind) for kind in (*KINDS, "user")]
        return ":".join(str(each) for each in (self.pid, *(int(each) for each in start), *namespaces))

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._directory, number)


def open_identified(identity: str) -> OpenProcess | None:
    """Open the process with this identity; None unless it still lives and belongs to this user."""
    pid = identity.partition(":")[0]
    if not pid.isdecimal():
        return None
    try:
        process = OpenProcess(int(pid))
    except OSError:
        return None
    if process.is_own and process.identity == identity and process.is_alive:
        return process
    process.close()
    return None


def main(arguments: Sequence[str]) -> NoReturn:
    """Run ``COMMAND`` in namespaces of a process, and end as it ends.

    ``KINDS`` are the namespaces, separated by commas; in a mount namespace ``COMMAND`` starts in ``DIRECTORY``, or in /
    if that is missing there. Environment and descriptors are inherited unchanged; ``COMMAND`` is found by PATH.
    """
    identity, kinds, directory, *command = arguments
    environment = _inherited_environment()
    process = open_identified(identity)
    if process is None:
        sys.exit("the process to enter has ended")
    with process:
        namespaces = [process.open(f"ns/{kind}") for kind in kinds.split(",")]
        root = process.open("root", os.O_PATH | os.O_DIRECTORY)
    setns = ctypes.CDLL(None, use_errno=True).setns
    for namespace in namespaces:
        if setns(namespace, 0) != 0:
            sys.exit(f"cannot enter a namespace: {os.strerror(ctypes.get_errno())}")
    if "mnt" in kinds.split(","):
        os.fchdir(root)
        os.chroot(".")
        try:
            os.chdir(directory)
        except OSError:
            os.chdir("/")
    if "pid" in kinds.split(","):
        _continue_in_child()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, for itself
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if error.errno == errno.ENOENT else 126)


def _inherited_environment() -> dict[bytes, bytes]:
    """Return the variables that this process got: Python may set LC_CTYPE in ``os.environ``."""
    entries = [entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0") if entry]
    return {name: value for name, _, value in entries}


def _continue_in_child() -> None:
    """Return in a child, which is in the pid namespace; the parent stops, continues and ends with it."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    child = os.fork()
    if child == 0:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)
    if os.WIFSIGNALED(status):
        cause = os.WTERMSIG(status)
        if cause != signal.SIGKILL:
            signal.signal(cause, signal.SIG_DFL)
        os.kill(os.getpid(), cause)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The only door out: every process that hidl starts is started here.

Commands are argv lists, never shell strings. A child runs in a process group of its own, which is ended as a
whole on a time-out, an interrupt or an error, and it gets SIGTERM from the kernel when hidl itself is killed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hidl_cli.errors import ProcessFailed

_PR_SET_PDEATHSIG = 1
_TAIL = 4000
_GRACE_SECONDS = 5.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Completed:
    """An ended process: exit status (negative: the signal) and what it printed."""

    command: tuple[str, ...]
    status: int
    stdout: str
    stderr: str


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    check: bool = True,
    meanwhile: Callable[[], object] | None = None,
) -> Completed:
    """Run ``command`` to its end.

    ``env`` replaces the whole environment where given; ``timeout`` is in seconds. ``meanwhile`` is called while the
    program runs; if it raises, the program is ended. With ``log``, both output streams
    are appended to that file as they come (and ``Completed.stdout`` is what this command added to it).
    Raises ``ProcessFailed`` when the program cannot be started, runs out of time (status -SIGKILL) or, with
    ``check``, ends with a status other than 0.
    """
    argv = tuple(os.fspath(word) for word in command)
    with _output_files(log) as (out, err), _signals_deferred() as deliver_signals:
        start = out.tell()
        try:
            child = subprocess.Popen(
                argv,
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=_new_group_that_dies_with_parent(),  # noqa: PLW1509 - it calls nothing that takes a lock
            )
        except OSError as error:
            raise ProcessFailed(argv, cwd=cwd, status=127, output=str(error), log=log) from error

        def alongside() -> None:
            deliver_signals()
            if meanwhile is not None:
                meanwhile()

        status = _wait(child, timeout, alongside)
        out.seek(start)
        stdout = out.read().decode("utf-8", "replace")
        stderr = ""
        if err is not out:
            err.seek(0)
            stderr = err.read().decode("utf-8", "replace")
    if status is None or (check and status != 0):
        output = (stdout + stderr)[-_TAIL:]
        if status is None:
            output += f"\n(ended by hidl after {timeout:g} s)"
        raise ProcessFailed(argv, cwd=cwd, status=-signal.SIGKILL if status is None else status, output=output, log=log)
    return Completed(argv, status, stdout, stderr)


def start_detached(
    command: Sequence[str | os.PathLike[str]], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, which lives on when hidl ends; its output goes to the two files."""
    argv = [os.fspath(word) for word in command]
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def replace_with(command: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str]) -> None:
    """Become ``command`` (``execve``); raises ``ProcessFailed`` where that program cannot be started."""
    argv = [os.fspath(word) for word in command]
    try:
        os.execvpe(argv[0], argv, dict(env))
    except OSError as error:
        raise ProcessFailed(argv, cwd=None, status=127, output=str(error), log=None) from error


class _output_files:
    """The (stdout, stderr) files of a child: the log twice, or two temporary ones."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            file = self._log.open("a+b")
            file.seek(0, os.SEEK_END)
            self._files = [file]
            return file, file
        self._files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        return self._files[0], self._files[1]

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


@contextmanager
def _signals_deferred() -> Iterator[Callable[[], None]]:
    """Let no signal handler run until the function that this gives is called.

    A handler that raises while a process is being forked is lost, for Python ignores what its hooks around a fork
    raise; and one that raises right after it leaves a child that nobody knows.
    """
    arrived: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere no handler runs
        handlers = {number: signal.getsignal(number) for number in _INTERRUPTS if callable(signal.getsignal(number))}
        for number in handlers:
            signal.signal(number, lambda number, _: arrived.append(number))

    def deliver() -> None:
        while handlers:
            signal.signal(*handlers.popitem())
        while arrived:
            signal.raise_signal(arrived.pop())

    try:
        yield deliver
    finally:
        deliver()


def _wait(child: subprocess.Popen[bytes], timeout: float | None, meanwhile: Callable[[], object]) -> int | None:
    """Return the exit status, or None after a time-out; whatever happens, the whole group is gone afterwards."""
    try:
        meanwhile()
        return child.wait() if timeout is None or _ends_within(child, timeout) else None
    finally:
        if child.returncode is None:
            _end_group(child)


def _ends_within(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait up to ``timeout`` seconds; the kernel wakes us, where ``Popen.wait`` would look every 50 ms."""
    if sys.platform != "linux":
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True
    descriptor = os.pidfd_open(child.pid)
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the child's group, SIGKILL to what is left of it after the grace time."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a process that is stuck in the kernel is not ended even by SIGKILL
        child.wait(_GRACE_SECONDS)


def _new_group_that_dies_with_parent() -> Callable[[], None]:
    """Return what the child does between fork and exec."""
    # Looked up before the fork: afterwards a lock of the dynamic linker may belong to a thread that is not there.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    parent = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # hidl died between fork and prctl
                os._exit(127)

    return prepare

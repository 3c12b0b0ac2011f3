"""The only door out: every process that hidl starts is started here.

Commands are argv lists, never shell strings. A child runs in a process group of its own, which is ended as a
whole on a time-out, an interrupt or an error, and it gets SIGTERM from the kernel when hidl itself is killed.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hidl_cli import terminal
from hidl_cli.errors import ProcessFailed

_PR_SET_PDEATHSIG = 1
_TAIL = 4000
_GRACE_SECONDS = 5.0
#: How long a command that is attended may take to end after an interrupt, and the time between two beats, in seconds.
_ATTENDED_GRACE_SECONDS = 20.0
_BEAT_SECONDS = 10.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Called with the words of each command before it starts.
observers: list[Callable[[Sequence[str]], object]] = []


def _words(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the command as strings, and show it to the observers."""
    argv = [os.fspath(word) for word in command]
    for observer in observers:
        observer(argv)
    return argv


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
    argv = tuple(_words(command))
    with _output_files(log) as (out, err), signals_deferred() as deferred:
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
            deferred.deliver()
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
    argv = _words(command)
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def start_bound(
    command: Sequence[str | os.PathLike[str]], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a group of its own, with output as for ``start_detached``; SIGTERM ends it with hidl."""
    argv = _words(command)
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=_new_group_that_dies_with_parent(),  # noqa: PLW1509 - it calls nothing that takes a lock
        )


def start_conversation(command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, with pipes to its standard input and from its standard output."""
    return subprocess.Popen(
        _words(command),
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        start_new_session=True,
    )


def start_attached(
    command: Sequence[str | os.PathLike[str]], *, cwd: Path, env: Mapping[str, str], own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Start ``command`` with this process's own streams, and the descriptors that it inherited.

    ``own_session``: signals to the process group of this one do not reach it.
    """
    argv = _words(command)
    return subprocess.Popen(argv, cwd=cwd, env=dict(env), close_fds=False, start_new_session=own_session)


def attend(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path,
    env: Mapping[str, str],
    deferred: Deferred,
    started: Callable[[int], object] = lambda _: None,
    beat: Callable[[], object] = lambda: None,
) -> int:
    """Run ``command`` with this process's own streams and, if they are a terminal, in its foreground.

    Returns its exit status (negative: the signal); the terminal then has its former modes. An interrupt (in
    ``deferred``) of this process ends the command and its process group, and SIGTERM reaches it when this process is
    killed. What is suspended from the terminal goes on: nobody could wake it. ``started`` gets the process's number;
    ``beat`` is called at once and every few seconds. Raises ``ProcessFailed`` if it cannot be started.
    """
    argv = _words(command)
    prepare = _new_group_that_dies_with_parent()
    with terminal.lent() as come_to_foreground, _wakes() as wait:

        def between_fork_and_exec() -> None:
            prepare()
            come_to_foreground()

        try:
            child = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                preexec_fn=between_fork_and_exec,  # noqa: PLW1509 - it calls nothing that takes a lock
            )
        except OSError as error:
            raise ProcessFailed(argv, cwd=cwd, status=127, output=str(error), log=None) from error
        try:
            started(child.pid)
            deadline = math.inf
            while child.poll() is None and time.monotonic() < deadline:
                if deferred.arrived and deadline == math.inf:
                    deadline = time.monotonic() + _ATTENDED_GRACE_SECONDS
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGTERM)
                with suppress(ProcessLookupError):
                    if _is_stopped(child.pid):
                        os.killpg(child.pid, signal.SIGCONT)
                beat()
                wait(min(_BEAT_SECONDS, max(0.0, deadline - time.monotonic())))
        finally:
            if child.returncode is None:
                _end_group(child)
    return child.wait()


def replace_with(command: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str]) -> None:
    """Become ``command`` (``execve``); raises ``ProcessFailed`` where that program cannot be started."""
    argv = _words(command)
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


class Deferred:
    """Signals that arrived and are not handled yet, by their numbers."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self._handlers: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere no handler runs
            self._handlers = {each: signal.getsignal(each) for each in _INTERRUPTS if callable(signal.getsignal(each))}
            for number in self._handlers:
                signal.signal(number, lambda number, _: self.arrived.append(number))

    def deliver(self) -> None:
        """Let the handlers run again, now for what arrived."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        while self.arrived:
            signal.raise_signal(self.arrived.pop())


@contextmanager
def signals_deferred() -> Iterator[Deferred]:
    """Let no handler of an interrupt run until ``Deferred.deliver`` is called, or the context is left.

    A handler that raises while a process is being forked is lost, for Python ignores what its hooks around a fork
    raise; and one that raises right after it leaves a child that nobody knows.
    """
    deferred = Deferred()
    try:
        yield deferred
    finally:
        deferred.deliver()


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


@contextmanager
def _wakes() -> Iterator[Callable[[float], object]]:
    """Give what waits up to so many seconds for a signal: that a child ended or stopped, or an interrupt."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before, handler = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # by default it would wake nobody

    def wait(seconds: float) -> None:
        if select.select([reader], [], [], seconds)[0]:
            os.read(reader, 4096)

    try:
        yield wait
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _is_stopped(pid: int) -> bool:
    """Whether a child was suspended and that was not seen before."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    except ChildProcessError:
        return False


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

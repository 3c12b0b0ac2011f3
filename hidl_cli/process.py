"""Start and supervise processes. Every process that hidl starts is started here.

Commands are lists of arguments, never shell strings. A child runs in its own process group, which is terminated as a
whole after a timeout, an interrupt or an error. The kernel sends the child SIGTERM if hidl itself is killed.
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
from hidl_cli.redaction import shown_end

_PR_SET_PDEATHSIG = 1
#: Bytes at the end of a program's output that its error contains.
_TAIL = 4000
_GRACE_SECONDS = 5.0
#: Seconds that a command started by ``attend`` has to exit after an interrupt, and seconds between two calls of
#: ``beat``.
_ATTENDED_GRACE_SECONDS = 20.0
_BEAT_SECONDS = 10.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Functions that are called with each command's arguments before it starts.
observers: list[Callable[[Sequence[str]], object]] = []


def _words(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the command as strings after passing it to the observers."""
    argv = [os.fspath(word) for word in command]
    for observer in observers:
        observer(argv)
    return argv


@dataclass(frozen=True)
class Completed:
    """A process that has ended, with its exit status (negative for a signal) and its output."""

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
    """Run ``command`` to completion.

    Args:
        command: The program and its arguments.
        cwd: Working directory (default: the current directory).
        env: The complete environment (default: this process's environment).
        timeout: Time limit in seconds.
        log: File to which both output streams are appended, in which case ``Completed.stdout`` is the added text.
        check: If set, raise ``ProcessFailed`` if the exit status is not 0.
        meanwhile: Called while the program runs. If it raises an exception, the program is ended.

    Raises ``ProcessFailed`` if the program cannot be started, if it runs out of time (status -SIGKILL) or, with
    ``check``, if it exits with a status other than 0.
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
                preexec_fn=_new_group_that_dies_with_parent(),  # noqa: PLW1509 - calls nothing that takes a lock
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
        output = shown_end(stdout + stderr, _TAIL)
        if status is None:
            output += f"\n(stopped by hidl after {timeout:g} s)"
        raise ProcessFailed(argv, cwd=cwd, status=-signal.SIGKILL if status is None else status, output=output, log=log)
    return Completed(argv, status, stdout, stderr)


def start_detached(
    command: Sequence[str | os.PathLike[str]], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, which survives this process, and append its output to the two files."""
    argv = _words(command)
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def start_bound(
    command: Sequence[str | os.PathLike[str]], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path
) -> subprocess.Popen[bytes]:
    """Start ``command`` like ``start_detached``, but in this session. SIGTERM ends the command when hidl ends."""
    argv = _words(command)
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=_new_group_that_dies_with_parent(),  # noqa: PLW1509 - calls nothing that takes a lock
        )


def start_conversation(command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, with pipes for standard input and output."""
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
    """Start ``command`` with this process's standard streams and inherited descriptors.

    If ``own_session`` is set, the command does not receive signals that are sent to this process group.
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
    """Run ``command`` with this process's streams, in the foreground if they are a terminal.

    An interrupt of this process ends the command and its process group. If this process is killed, the command receives
    SIGTERM. A command that is suspended from the terminal is resumed, since nothing else could resume it. The terminal
    modes are restored at the end.

    Args:
        command: The program and its arguments.
        cwd: Working directory.
        env: The complete environment.
        deferred: This process's signals that arrive while the command runs.
        started: Called with the command's process id.
        beat: Called immediately and then every few seconds.

    Returns the exit status (negative for a signal). Raises ``ProcessFailed`` if the command cannot be started.
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
                preexec_fn=between_fork_and_exec,  # noqa: PLW1509 - calls nothing that takes a lock
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
    """Replace this process with ``command`` (``execve``). Raises ``ProcessFailed`` if that fails."""
    argv = _words(command)
    try:
        os.execvpe(argv[0], argv, dict(env))
    except OSError as error:
        raise ProcessFailed(argv, cwd=None, status=127, output=str(error), log=None) from error


class _output_files:
    """The files for a child's output: the log for both streams, or two temporary files."""

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
    """Numbers of the signals that have arrived but have not been handled yet."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self._handlers: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():  # handlers only run in the main thread
            self._handlers = {each: signal.getsignal(each) for each in _INTERRUPTS if callable(signal.getsignal(each))}
            for number in self._handlers:
                signal.signal(number, lambda number, _: self.arrived.append(number))

    def deliver(self) -> None:
        """Restore the handlers, and run them for the signals that have arrived."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        while self.arrived:
            signal.raise_signal(self.arrived.pop())


@contextmanager
def signals_deferred() -> Iterator[Deferred]:
    """Defer interrupts until ``Deferred.deliver`` is called or the context is left.

    An exception raised by a handler during a fork is lost, because Python ignores exceptions in its fork hooks. An
    exception right after the fork would leave a child that nothing waits for.
    """
    deferred = Deferred()
    try:
        yield deferred
    finally:
        deferred.deliver()


def _wait(child: subprocess.Popen[bytes], timeout: float | None, meanwhile: Callable[[], object]) -> int | None:
    """Return the exit status, or None after a timeout. In either case, the whole process group has ended."""
    try:
        meanwhile()
        return child.wait() if timeout is None or _ends_within(child, timeout) else None
    finally:
        if child.returncode is None:
            _end_group(child)


def _ends_within(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Return whether the child ends within ``timeout`` seconds. ``Popen.wait`` would poll every 50 ms."""
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
    """Provide a function that waits up to a number of seconds for a signal (a child's end or stop, or an interrupt)."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before, handler = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the default action would not wake the select

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
    """Return whether a child has been suspended since the last call."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    except ChildProcessError:
        return False


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the child's process group, and SIGKILL to the remaining processes after the grace period."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # SIGKILL cannot end a process stuck in the kernel
        child.wait(_GRACE_SECONDS)


def _new_group_that_dies_with_parent() -> Callable[[], None]:
    """Return the function that the child calls between fork and exec."""
    # Looked up before the fork because, in the child, a thread that no longer exists may hold a dynamic linker lock.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    parent = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # hidl was killed between fork and prctl
                os._exit(127)

    return prepare

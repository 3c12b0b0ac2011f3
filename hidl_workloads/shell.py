"""Run a shell or a command at a terminal, on the first node of ``hidl shell``'s allocation, and leave nothing behind.

::

    python -m hidl_workloads.shell --directory DIR [--limit SECONDS] [--beat] -- COMMAND...

The command gets the terminal. When it ends, when the time limit is reached, on SIGTERM or SIGHUP, when the terminal is
gone, or when hidl gives no sign of life any more (``--beat``), every process that descends from it is ended, also those
in sessions of their own. ``status.json`` in DIR tells how it ended; the exit status is the command's, 128 + N if signal
N ended it, else 143.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hidl_workloads import tunnel

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDED_EARLY = 143
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # LSF sends SIGUSR2 at a time limit
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
#: Seconds without a sign of life after which hidl is considered gone; it sends one every ten seconds.
_SILENCE_SECONDS = 300.0


class Beat:
    """The file that hidl changes as long as it lives; clocks of hosts are not compared."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = self._read()
        self._at = time.monotonic()

    def is_silent(self) -> bool:
        """Return True if nothing has changed for long; a file system that hangs stops this clock too."""
        now, elapsed = self._read(), time.monotonic() - self._at
        if now != self._seen or now is None:
            self._seen, self._at = now, time.monotonic()
            return False
        return elapsed > _SILENCE_SECONDS

    def _read(self) -> str | None:
        try:
            return self._file.read_text(encoding="utf-8")
        except OSError:
            return None


class Attended:
    """The command as a child in a process group of its own, in the terminal's foreground."""

    def __init__(self, command: Sequence[str]) -> None:
        self._terminal = os.isatty(0)
        self._modes = termios.tcgetattr(0) if self._terminal else None
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, parent, foreground=self._terminal)
        with suppress(OSError):  # done by the parent or the child, whichever is first
            os.setpgid(self.pid, self.pid)
        self._to_foreground(self.pid)

    def reap(self) -> int | None:
        """Collect what has ended or was suspended, and return the command's exit status if that ended."""
        status = None
        while True:
            try:
                pid, how = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return status
            if pid == 0:
                return status
            if os.WIFSTOPPED(how):  # no other process could resume it
                _signal_group(pid, signal.SIGCONT)
            elif pid == self.pid:
                code = os.waitstatus_to_exitcode(how)
                status = code if code >= 0 else 128 - code

    def terminal_is_gone(self) -> bool:
        """Return True if the terminal was closed."""
        if not self._terminal:
            return False
        poll = select.poll()
        poll.register(0, 0)
        return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))

    def end(self) -> None:
        """Ask the command to end; the shell then tells its jobs."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
            _signal_group(self.pid, number)

    def sweep(self) -> None:
        """End all descendants: SIGTERM, and SIGKILL to those that are left after the grace time."""
        for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            deadline = time.monotonic() + seconds
            while found := _descendants():
                for pid in found:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                        os.kill(pid, signal.SIGCONT)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
                self.reap()

    def give_back(self) -> None:
        """Make the terminal what it was."""
        self._to_foreground(os.getpgrp())
        if self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._modes)

    def _to_foreground(self, group: int) -> None:
        if self._terminal:
            with suppress(OSError):
                os.tcsetpgrp(0, group)


def run(command: Sequence[str], directory: Path, *, limit: float | None, beat: Beat | None) -> int:
    """Run the command to its end, whatever ends it; returns the exit status."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    arrived: list[int] = []
    for number in (*_ENDING, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, lambda number, _: arrived.append(number))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    deadline = None if limit is None else time.monotonic() + limit
    child = Attended(command)
    state, status, why = "COMPLETED", None, ""
    killing = None
    while True:
        for number in (signal.SIGINT, signal.SIGQUIT):  # a terminal sends them only to its foreground group
            if number in arrived:
                arrived.remove(number)
                _signal_group(child.pid, number)
        status = child.reap()
        if status is not None:
            break
        if killing is None:
            state, why = _reason(child, directory, arrived, deadline, beat)
            if why:
                _tell(f"{why}: ending the shell")
                child.end()
                killing = time.monotonic() + _GRACE_SECONDS
        elif time.monotonic() > killing:
            break
        if select.select([reader], [], [], _LOOK_SECONDS)[0]:
            os.read(reader, 4096)
    child.sweep()
    child.give_back()
    if why:
        status = _ENDED_EARLY
    # SIGTERM means the time limit or a cancellation; without a reason here, hidl queries the scheduler.
    _write_status(directory, state, status or 0, "" if state == "CANCELLED" else why)
    return status or 0


def _reason(
    child: Attended, directory: Path, arrived: Sequence[int], deadline: float | None, beat: Beat | None
) -> tuple[str, str]:
    """Return the state in which the shell ends now, and why; without a reason it goes on."""
    if child.terminal_is_gone():
        return "INTERRUPTED", "the terminal is gone"
    if signal.SIGHUP in arrived:
        return "INTERRUPTED", "hung up"
    if any(number in arrived for number in _ENDING):
        try:  # a command that cancels the shell writes the reason
            state = (directory / "reason").read_text(encoding="utf-8").strip()
        except OSError:
            state = "CANCELLED"
        return state, "cancelled, or the time limit was reached"
    if deadline is not None and time.monotonic() > deadline:
        return "TIMEOUT", "time limit reached"
    if beat is not None and beat.is_silent():
        return "INTERRUPTED", f"no sign of life from hidl for {_SILENCE_SECONDS:.0f} s"
    return "COMPLETED", ""


def _become(command: Sequence[str], parent: int, *, foreground: bool) -> NoReturn:
    """In the child: be the command."""
    with suppress(OSError):
        os.setpgid(0, 0)
    if foreground:
        with suppress(OSError):
            os.tcsetpgrp(0, os.getpid())
    _prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != parent:
        os._exit(_ENDED_EARLY)
    signal.set_wakeup_fd(-1)
    for number in (*_ENDING, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        _tell(f"cannot start {command[0]}: {error.strerror}")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(pid), number)


def _descendants() -> list[int]:
    """The processes that descend from this one, without those that ended; orphans among them are its children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def _write_status(directory: Path, state: str, status: int, why: str) -> None:
    """Complete the status that the job script began; ignore a full disk and a directory that is gone."""
    file, new = directory / "status.json", directory / ".status.json.new"
    with suppress(OSError, ValueError):
        document = json.loads(file.read_text(encoding="utf-8"))
        document |= {"state": state, "exit_status": status, "ended": time.time()} | ({"reason": why} if why else {})
        new.write_text(json.dumps(document), encoding="utf-8")
        new.replace(file)


def _tell(text: str) -> None:
    """Print a line; a terminal in raw mode needs the return."""
    with suppress(OSError):
        os.write(2, f"\r\nhidl: {text}\r\n".encode() if os.isatty(2) else f"hidl: {text}\n".encode())


def main(words: Sequence[str]) -> int:
    """Run the command after ``--``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--beat", action="store_true")
    parser.add_argument("--login", default="")
    parser.add_argument("--user", default="")
    at = list(words).index("--")
    given, command = parser.parse_args(words[:at]), list(words[at + 1 :])
    line = tunnel.line(command, user=given.user, login=given.login)
    if line:
        _tell(line)
    beat = Beat(given.directory / "beat") if given.beat else None
    return run(command, given.directory, limit=given.limit, beat=beat)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

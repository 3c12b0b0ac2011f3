"""A person at a terminal: hidl on a pseudo-terminal of its own, as the leader of a session."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import until


class Terminal:
    """``command`` on a new terminal."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], list(command), {**environment, "PS1": "$ ", "TERM": "xterm", "SHELL": "/bin/bash"})
        self.shown = ""
        self._read_to = 0
        self.status: int | None = None

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._terminal, f"{line}\n".encode())

    def press(self, key: bytes) -> None:
        """Press a key, such as Ctrl-C (``b"\\x03"``)."""
        os.write(self._terminal, key)

    def see(self, text: str) -> None:
        """Read until ``text`` is shown after what was seen before."""
        until(lambda: self._found(text), otherwise=lambda: f"{text!r} is not in {self.shown!r}")
        self._read_to = self.shown.index(text, self._read_to) + len(text)

    def close(self) -> None:
        """Close the terminal's window."""
        os.close(self._terminal)

    def wait(self) -> int:
        """Read on until hidl ends, and return its exit status, negative for a signal."""
        until(self.has_ended, otherwise=lambda: self.shown)
        return self.status if self.status is not None else 0

    def has_ended(self) -> bool:
        """Read what is there; whether hidl has ended."""
        return self._read() and self.ended()

    def ended(self) -> bool:
        """Whether hidl has ended; its status is then known."""
        if self.status is None:
            pid, how = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(how)
        return self.status is not None

    def _found(self, text: str) -> bool:
        self._read()
        return text in self.shown[self._read_to :]

    def _read(self) -> bool:
        """Read what is there; returns always true."""
        with suppress(OSError):
            while select.select([self._terminal], [], [], 0.05)[0] and (new := os.read(self._terminal, 65536)):
                self.shown += new.decode("utf-8", "replace")
        return True


def processes_with(mark: str) -> list[str]:
    """The command lines, on this machine and the nodes of its cluster, that contain the mark."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if mark in words and int(file.parent.name) != os.getpid():
                found.append(words)
    return found

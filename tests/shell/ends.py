"""What may end a shell, for tests of each scheduler: afterwards nothing of it is left."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.shell.terminal import Terminal, processes_with
from tests.tiers import deep
from tests.waiting import until


@dataclass(frozen=True)
class Open:
    """An open shell, in which processes wait: in the background, in a session of their own, ranks on all nodes."""

    terminal: Terminal
    hidl: Hidl
    seconds: str

    def job(self) -> str:
        """The id of its run."""
        (run,) = self.hidl.runs.iterdir()
        return run.name

    def nothing_is_left(self) -> None:
        """No process of it, on this machine or a node, and no run."""
        until(
            lambda: not processes_with(self.seconds) and not processes_with(str(self.hidl.runs)),
            otherwise=lambda: f"{processes_with(self.seconds)} {processes_with(str(self.hidl.runs))}",
        )


def open_shell(hidl: Hidl, cwd: Path, *options: str, launched: int) -> Open:
    """Open a shell with stack mpi, and start what is to be ended in it; ``launched``: ranks on all nodes."""
    seconds = f"10{secrets.randbelow(10**8):08d}"
    terminal = Terminal(hidl.command("shell", "mpi", *options), hidl.environment, cwd)
    terminal.see("(mpi) ")
    shell = Open(terminal, hidl, seconds)
    terminal.type(f"sleep {seconds} & setsid sleep {seconds} & nohup sleep {seconds} > /dev/null 2>&1 &")
    if launched:
        terminal.type(f"ranks sleep {seconds} &")
    until(
        lambda: sum(words.split()[0].endswith("sleep") for words in processes_with(f" {seconds}")) == 3 + launched,
        otherwise=lambda: f"{processes_with(seconds)} {terminal.shown}",
    )
    return shell


def _press_ctrl_d(shell: Open) -> int:
    """Press the keys until the shell has ended: bash drops those that come between a command and its prompt."""

    def has_ended() -> bool:
        if not shell.terminal.has_ended():
            shell.terminal.press(b"\x04")
        return shell.terminal.has_ended()

    until(has_ended, otherwise=lambda: shell.terminal.shown)
    return 0


def _exit(shell: Open) -> int:
    shell.terminal.type("exit 7")
    shell.terminal.type("exit 7")
    return 7


def _kill(number: int) -> Callable[[Open], int]:
    def kill(shell: Open) -> int:
        os.kill(shell.terminal.pid, number)
        return -number if number == signal.SIGKILL else 130

    return kill


def _close(shell: Open) -> int:
    shell.terminal.close()
    return 130


def _cancel(shell: Open) -> int:
    completed = shell.hidl("cancel", shell.job())
    assert completed.returncode == 0, completed.stderr
    return 8


#: How a shell is ended, and the exit status that hidl then has.
ENDS: Mapping[str, Callable[[Open], int]] = {
    "exit": _exit,
    "ctrl-d": _press_ctrl_d,
    "the window is closed": _close,
    "sighup": _kill(signal.SIGHUP),
    "sigterm": _kill(signal.SIGTERM),
    "sigint": _kill(signal.SIGINT),
    "kill -9 of hidl": _kill(signal.SIGKILL),
    "hidl cancel": _cancel,
}

#: The ways that differ most: the others end a shell through the same code as on this machine, where all are tried.
each_end = pytest.mark.parametrize(
    "way", [way if way in ("exit", "the window is closed") else deep(way) for way in ENDS]
)

#: After these, `hidl status` still lists the shell.
KEPT = ("kill -9 of hidl", "hidl cancel")


def children(pid: int) -> Sequence[int]:
    """The processes that a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

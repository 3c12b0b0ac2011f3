"""Connections to hosts: on each, a guard (``guard.sh``) looks at the host, locks it, and cleans up after the run.

What crosses the login shell of a host is ``exec bash -s hidl-guard RUN``; all values go through standard input.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import TracebackType
from typing import IO

from hidl_cli import process
from hidl_cli.errors import HidlError

#: A directory that each Linux host has for itself, and all of its users can open: runs lock it.
LOCK = "/dev/shm"
CONNECT_SECONDS = 10
#: For the connection, and for what a guard looks at.
LOOK_SECONDS = 45.0
#: How long a guard may take to end what is left of a run.
SWEEP_SECONDS = 30.0
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "6",
    "ControlMaster": "no",
    "ClearAllForwardings": "yes",
}
_SAYS = b"hidl-guard: "
_LONGEST_LINE = 65536
_RUN = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Needs:
    """What a run needs on its hosts.

    ``prefix``: the installation, with the SHA-256 of its ``manifest``; empty: none. ``directory``: the run's, with
    ``token`` in its file ``.token``. ``lock``: the directory that is locked; empty: none. ``origin``, ``port``: where
    this machine is reached, empty if that is not looked at.
    """

    prefix: str
    manifest: str
    directory: str
    token: str
    lock: str = LOCK
    origin: str = ""
    port: str = ""

    @property
    def lines(self) -> str:
        """The values as the guard reads them; ``HidlError`` for a value with a line break."""
        values = (self.prefix, self.manifest, self.directory, self.token, self.lock, self.origin, self.port)
        if any(set(value) & set("\n\r\0") for value in values):
            raise HidlError(f"the directory {self.directory!r} or {self.prefix!r} has a line break in its name")
        return "".join(f"{value}\n" for value in values)


class Guard:
    """The guard on one host. ``said``: its words so far, the last value of each; ``ended``: its connection closed."""

    def __init__(self, host: str, run: str, needs: Needs, environment: Mapping[str, str]) -> None:
        if not _RUN.fullmatch(run):
            raise HidlError(f"invalid run id {run!r}")
        self.host = host
        self.said: dict[str, str] = {}
        self.ended = False
        self._unread = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        command = ["ssh", "-T", "-x", "-a", *options, "--", host, "exec", "bash", "-s", "hidl-guard", run]
        self._child = process.start_conversation(command, env=environment, stderr=self._errors)
        self.say(_script() + needs.lines, end="")

    def say(self, text: str, *, end: str = "\n") -> None:
        """Send a line; nothing happens if the connection is closed."""
        assert self._child.stdin is not None
        with suppress(OSError, ValueError):
            self._child.stdin.write((text + end).encode())

    @property
    def output(self) -> IO[bytes]:
        """What the guard says, to be waited for."""
        assert self._child.stdout is not None
        return self._child.stdout

    def read(self) -> None:
        """Take in what the guard has said; blocks if that is nothing."""
        new = os.read(self.output.fileno(), 65536)
        if not new:
            self.ended = True
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
            return
        *lines, rest = (self._unread + new).split(b"\n")
        self._unread = rest[-_LONGEST_LINE:]
        for line in lines:
            if line.startswith(_SAYS):
                word, _, value = line[len(_SAYS) :].decode("utf-8", "replace").partition(" ")
                self.said[word] = _plain(value)

    @property
    def complaint(self) -> str:
        """What ssh printed last, on one line."""
        self._errors.seek(0)
        lines = [_plain(line) for line in self._errors.read(100_000).decode("utf-8", "replace").splitlines()]
        told = [line for line in lines if line and not line.startswith(("Warning:", "**"))]
        status = self._child.poll()
        return told[-1] if told else f"ssh ended with status {status}" if status is not None else "no answer"

    def close(self) -> None:
        """Close the connection; the guard ends what the run has left, unless it was never told to start."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()

    def drop(self) -> None:
        """End ssh itself, and release what belongs to it."""
        self.close()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(2)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self.output.close()
        self._errors.close()


class Guards:
    """The guards of one run, one on each host; a context, which ends them."""

    def __init__(
        self, hosts: Sequence[str], run: str, needs: Needs, environment: Mapping[str, str] | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self.all: list[Guard] = []
        surroundings = os.environ if environment is None else environment
        if shutil.which("ssh", path=surroundings.get("PATH")) is None:
            raise FileNotFoundError("ssh")
        try:
            for host in hosts:
                guard = Guard(host, run, needs, surroundings)
                self.all.append(guard)
                self._selector.register(guard.output, selectors.EVENT_READ, guard)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Guards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for guard in self.all:
            guard.close()
        with suppress(KeyboardInterrupt):
            self.listen_until(lambda: all(guard.ended for guard in self.all), seconds=2)
        for guard in self.all:
            guard.drop()
        self._selector.close()

    def listen(self, seconds: float) -> None:
        """Take in what guards say, for at most so many seconds; returns after the first words."""
        for key, _ in self._selector.select(seconds):
            guard: Guard = key.data
            guard.read()
            if guard.ended:
                self._selector.unregister(guard.output)

    def listen_until(self, done: Callable[[], bool], *, seconds: float) -> bool:
        """Take in what guards say until ``done``; False if the time is over before."""
        deadline = time.monotonic() + seconds
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self._selector.get_map():
                return done()
            self.listen(min(left, 1.0))
        return True

    def look(self) -> list[Trouble]:
        """Wait for what the guards find, on all hosts at once; return what is wrong."""
        self.listen_until(lambda: all("looked" in g.said or g.ended for g in self.all), seconds=LOOK_SECONDS)
        return [*(trouble for guard in self.all if (trouble := _unanswered(guard))), *self._same_host()]

    def _same_host(self) -> Iterable[Trouble]:
        by_name: dict[str, list[str]] = {}
        for guard in self.all:
            if "looked" in guard.said:
                by_name.setdefault(guard.said.get("name", guard.host), []).append(guard.host)
        for name, hosts in by_name.items():
            if len(hosts) > 1:
                yield Trouble(hosts[1], f"the same host as {hosts[0]} ({name})", "name each host once")

    def in_order(self) -> list[Guard]:
        """Return the guards in the order in which all runs lock hosts, so that no two wait for each other."""
        return sorted(self.all, key=lambda guard: (guard.said.get("name", ""), guard.host))

    def end(self) -> list[str]:
        """Have the guards end what is left of the run; return the hosts that did not confirm that nothing is."""
        for guard in self.all:
            guard.say("end")
        self.listen_until(lambda: all("swept" in g.said or g.ended for g in self.all), seconds=SWEEP_SECONDS)
        return [guard.host for guard in self.all if "swept" not in guard.said or "left" in guard.said]


@dataclass(frozen=True)
class Trouble:
    """Why a host cannot be used, and what to do about it."""

    host: str
    what: str
    fix: str = field(compare=False)


def troubles_of(guard: Guard, needs: Needs, arch: str) -> list[Trouble]:
    """Return what is wrong with a host that answered. ``arch``: what the installation was made for."""
    said, host = guard.said, guard.host
    shared = "use a file system that all hosts share (hidl install --prefix DIR), or the same path on each"
    found = []
    if said.get("arch", arch) != arch:
        found.append(Trouble(host, f"its architecture is {said['arch']}, expected {arch}", "use hosts of one kind"))
    if "no-prefix" in said:
        found.append(Trouble(host, f"the installation {needs.prefix} is not visible there", shared))
    elif "other-prefix" in said:
        found.append(Trouble(host, f"{needs.prefix} is another installation there", shared))
    elif "broken-prefix" in said and not found:
        words = said["broken-prefix"] or "it ended with an error"
        found.append(Trouble(host, f"the installation's Python does not start there: {words}", f"ssh {host}"))
    if "no-directory" in said:
        fix = "set XDG_STATE_HOME to a directory that all hosts share"
        found.append(Trouble(host, f"the run's directory {needs.directory} is not visible there", fix))
    if "lacks" in said:
        found.append(Trouble(host, f"{said['lacks']} is missing there", "install util-linux there, or --share-hosts"))
    if "no-way-back" in said:
        fix = f"ranks connect to it: {needs.origin} must be known there (DNS, /etc/hosts) and no firewall between"
        found.append(Trouble(host, f"this machine cannot be reached from there as {needs.origin}", fix))
    return found


def _unanswered(guard: Guard) -> Trouble | None:
    if "looked" in guard.said:
        return None
    words = guard.complaint if guard.ended else f"no answer within {LOOK_SECONDS:g} s"
    return Trouble(guard.host, words, next((fix for sign, fix in _FIXES if sign in words.lower()), "ssh {host} true"))


_FIXES = (
    (
        "host key verification failed",
        "connect once by hand, compare its key and accept it: ssh {host} true",
    ),
    (
        "identification has changed",
        "its key is not the known one; if that is right: ssh-keygen -R {host}, then ssh {host} true",
    ),
    (
        "permission denied",
        "hidl asks for no password: set up a key (ssh-keygen; ssh-copy-id {host}), or load it (ssh-add)",
    ),
    ("could not resolve", "check its name, or give it a HostName in ~/.ssh/config"),
    ("timed out", "is it up, and reachable from here? ssh {host} true"),
    ("no route", "is it up, and reachable from here? ping {host}"),
    ("connection refused", "is sshd running there?"),
    ("no answer", "what does its login shell do? time ssh {host} true"),
    ("bash", "bash must be on PATH of its login shell: ssh {host} bash --version"),
)


def _plain(text: str) -> str:
    """Words of another host without control characters, and not too long."""
    return "".join(c if c.isprintable() else " " for c in text)[:300].strip()


@cache
def _script() -> str:
    return resources.files("hidl_cli.schedulers.ssh").joinpath("guard.sh").read_text(encoding="utf-8")

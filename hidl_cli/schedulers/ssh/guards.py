"""Connect to a run's hosts. On each, a guard (``guard.sh``) checks the host, locks it, and cleans up afterwards.

The host's login shell only sees ``exec bash -s hidl-guard RUN``; all values are sent through standard input.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import IO

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.record import Run

#: The directory on which runs hold a lock. Every Linux host has its own, which all users can open.
LOCK = "/dev/shm"
CONNECT_SECONDS = 10
#: Seconds that a guard may take to connect and to check its host.
LOOK_SECONDS = 45.0
#: Seconds that a guard may take to end a run's remaining processes.
SWEEP_SECONDS = 30.0
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "6",
    "ControlMaster": "no",
    "ClearAllForwardings": "yes",
}
_PREFIX = b"hidl-guard: "
_LONGEST_LINE = 65536
_RUN = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Needs:
    """A run's requirements for its hosts; empty values are not checked.

    Attributes:
        prefix: Directory of the installation.
        manifest: SHA-256 of the installation's manifest.
        directory: Directory of the run.
        token: Content of the ``.token`` file in that directory.
        lock: Directory to lock.
        origin: Host name under which the hosts must reach this machine.
        port: Port on which this machine listens for connections from the hosts.
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
        """The values as lines of input for ``guard.sh``. Raises ``HidlError`` if a value contains a line break."""
        values = (self.prefix, self.manifest, self.directory, self.token, self.lock, self.origin, self.port)
        if any(set(value) & set("\n\r\0") for value in values):
            raise HidlError(f"the name of directory {self.directory!r} or {self.prefix!r} contains a line break")
        return "".join(f"{value}\n" for value in values)


class Guard:
    """The connection to a guard, which is the process that checks, locks and cleans up a host.

    Attributes:
        messages: The guard's messages so far, with the latest value of each.
        ended: True if the connection is closed.
    """

    def __init__(self, host: str, run: str, needs: Needs, environment: Mapping[str, str]) -> None:
        if not _RUN.fullmatch(run):
            raise HidlError(f"invalid run id {run!r}")
        self.host = host
        self.messages: dict[str, str] = {}
        self.ended = False
        self._unread = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        command = ["ssh", "-T", "-x", "-a", *options, "--", host, "exec", "bash", "-s", "hidl-guard", run]
        self._child = process.start_conversation(command, env=environment, stderr=self._errors)
        self.say(_script() + needs.lines, end="")

    def say(self, text: str, *, end: str = "\n") -> None:
        """Send a line, unless the connection is closed."""
        assert self._child.stdin is not None
        with suppress(OSError, ValueError):
            self._child.stdin.write((text + end).encode())

    @property
    def output(self) -> IO[bytes]:
        """Stream of the guard's messages."""
        assert self._child.stdout is not None
        return self._child.stdout

    def read(self) -> None:
        """Read the guard's next messages, blocking until some arrive."""
        new = os.read(self.output.fileno(), 65536)
        if not new:
            self.ended = True
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
            return
        *lines, rest = (self._unread + new).split(b"\n")
        self._unread = rest[-_LONGEST_LINE:]
        for line in lines:
            if line.startswith(_PREFIX):
                word, _, value = line[len(_PREFIX) :].decode("utf-8", "replace").partition(" ")
                self.messages[word] = _plain(value)

    @property
    def complaint(self) -> str:
        """The last error message from ssh, as a single line."""
        self._errors.seek(0)
        lines = [_plain(line) for line in self._errors.read(100_000).decode("utf-8", "replace").splitlines()]
        errors = [line for line in lines if line and not line.startswith(("Warning:", "**"))]
        status = self._child.poll()
        return errors[-1] if errors else f"ssh ended with status {status}" if status is not None else "no answer"

    def close(self) -> None:
        """Close the connection. If the run was started, the guard ends the run's remaining processes."""
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()

    def drop(self) -> None:
        """Terminate ssh and release its resources."""
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
    """A context manager that starts a guard on each of a run's hosts, and ends the guards on exit."""

    def __init__(
        self, hosts: Sequence[str], run: str, needs: Needs, environment: Mapping[str, str] | None = None
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self.all: list[Guard] = []
        environment = os.environ if environment is None else environment
        if shutil.which("ssh", path=environment.get("PATH")) is None:
            raise FileNotFoundError("ssh")
        try:
            for host in hosts:
                guard = Guard(host, run, needs, environment)
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
        """Read messages from the guards; return once the first messages arrive, or after ``seconds``."""
        for key, _ in self._selector.select(seconds):
            guard: Guard = key.data
            guard.read()
            if guard.ended:
                self._selector.unregister(guard.output)

    def listen_until(self, done: Callable[[], bool], *, seconds: float) -> bool:
        """Read messages from the guards until ``done()`` is True; return False if that takes more than ``seconds``."""
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
        """Wait until all hosts have been checked; return the hosts that did not respond or were named twice."""
        self.listen_until(lambda: all("looked" in g.messages or g.ended for g in self.all), seconds=LOOK_SECONDS)
        return [*(trouble for guard in self.all if (trouble := _unanswered(guard))), *self._same_host()]

    def _same_host(self) -> Iterable[Trouble]:
        by_name: dict[str, list[str]] = {}
        for guard in self.all:
            if "looked" in guard.messages:
                by_name.setdefault(guard.messages.get("name", guard.host), []).append(guard.host)
        for name, hosts in by_name.items():
            if len(hosts) > 1:
                yield Trouble(hosts[1], f"the same host as {hosts[0]} ({name})", "name each host once")

    def in_order(self) -> list[Guard]:
        """Return the guards by host name. All runs lock their hosts in this order, which prevents deadlocks."""
        return sorted(self.all, key=lambda guard: (guard.messages.get("name", ""), guard.host))

    def end(self) -> list[str]:
        """End all of the run's remaining processes; return the hosts that did not confirm this."""
        for guard in self.all:
            guard.say("end")
        self.listen_until(lambda: all("swept" in g.messages or g.ended for g in self.all), seconds=SWEEP_SECONDS)
        return [guard.host for guard in self.all if "swept" not in guard.messages or "left" in guard.messages]


@dataclass(frozen=True)
class Trouble:
    """A reason why a host cannot be used, and a fix."""

    host: str
    what: str
    fix: str = field(compare=False)


def troubles_of(guard: Guard, needs: Needs, arch: str) -> list[Trouble]:
    """Return the reasons why a host that responded cannot be used.

    Args:
        guard: The guard on the host.
        needs: Requirements of the run.
        arch: Architecture that the installation was built for.
    """
    messages, host = guard.messages, guard.host
    shared = "use a file system that all hosts share (hidl install --prefix DIR), or the same path on each"
    found = []
    if messages.get("arch", arch) != arch:
        what = f"its architecture is {messages['arch']}, expected {arch}"
        found.append(Trouble(host, what, "use hosts of the same architecture"))
    if "no-prefix" in messages:
        found.append(Trouble(host, f"the installation {needs.prefix} is not visible there", shared))
    elif "other-prefix" in messages:
        found.append(Trouble(host, f"{needs.prefix} is another installation there", shared))
    elif "broken-prefix" in messages and not found:
        error = messages["broken-prefix"] or "it ended with an error"
        found.append(
            Trouble(host, f"the installation's Python does not start there: {error}", f"check with: ssh {host}")
        )
    if "no-directory" in messages:
        fix = "set XDG_STATE_HOME to a directory that all hosts share"
        found.append(Trouble(host, f"the run's directory {needs.directory} is not visible there", fix))
    if "lacks" in messages:
        found.append(Trouble(host, f"{messages['lacks']} is missing there", "install util-linux, or use --share-hosts"))
    if "no-way-back" in messages:
        fix = f"make {needs.origin} resolve there (DNS, /etc/hosts), and permit connections to it in the firewalls"
        found.append(Trouble(host, f"this machine cannot be reached from there as {needs.origin}", fix))
    return found


def _unanswered(guard: Guard) -> Trouble | None:
    if "looked" in guard.messages:
        return None
    error = guard.complaint if guard.ended else f"no answer within {LOOK_SECONDS:g} s"
    return Trouble(
        guard.host, error, next((fix for sign, fix in _FIXES if sign in error.lower()), "check with: ssh {host} true")
    )


_FIXES = (
    ("host key verification failed", "connect once with ssh {host} true, and accept its key if it is correct"),
    (
        "identification has changed",
        "its key has changed; if that is expected, run: ssh-keygen -R {host}, then ssh {host} true",
    ),
    (
        "permission denied",
        "hidl does not prompt for passwords: set up a key (ssh-keygen; ssh-copy-id {host}), or load it (ssh-add)",
    ),
    ("could not resolve", "check its name, or add it to ~/.ssh/config with a HostName"),
    ("timed out", "check that it is up and reachable from here: ssh {host} true"),
    ("no route", "check that it is up and reachable from here: ping {host}"),
    ("connection refused", "check that sshd is running there"),
    ("no answer", "check that its login shell starts quickly: time ssh {host} true"),
    ("bash", "bash must be on PATH in its login shell; check with: ssh {host} bash --version"),
)


def _plain(text: str) -> str:
    """Remove control characters from the output of another host, and shorten it."""
    return "".join(c if c.isprintable() else " " for c in text)[:300].strip()


@cache
def _script() -> str:
    return resources.files("hidl_cli.schedulers.ssh").joinpath("guard.sh").read_text(encoding="utf-8")


_TOKEN = ".token"


class UnusableHosts(MissingPrecondition):
    """Some of a run's hosts cannot be used. ``troubles`` lists the reasons in the order of the hosts."""

    def __init__(self, hosts: tuple[str, ...], troubles: list[Trouble]) -> None:
        order = {host: place for place, host in enumerate(hosts)}
        self.troubles = tuple(sorted(troubles, key=lambda each: order[each.host]))
        super().__init__(_message(len(hosts), self.troubles), hint=_hint(self.troubles))


def needs_of(run: Run, *, shared: bool) -> Needs:
    """Return a run's requirements for its hosts, and write a new token to its directory.

    ``shared`` hosts are not locked.
    """
    prefix = (run.document("plan") or {}).get("prefix") or ""
    manifest = Path(prefix, "manifest.json")
    token = secrets.token_hex(8)
    write_text(run.directory / _TOKEN, f"{token}\n")
    return Needs(
        prefix=prefix,
        manifest=sha256(manifest.read_bytes()).hexdigest() if prefix and manifest.is_file() else "",
        directory=os.path.realpath(run.directory),
        token=token,
        lock="" if shared else LOCK,
    )


def check_hosts(hosts: tuple[str, ...], run: Run, *, shared: bool) -> None:
    """Connect to all hosts, and raise ``UnusableHosts`` if the run cannot use one. Leaves nothing on the hosts."""
    needs = needs_of(run, shared=shared)
    try:
        with socket.create_server(("", 0), backlog=len(hosts) + 16) as back:
            needs = replace(needs, origin=socket.gethostname(), port=str(back.getsockname()[1]))
            with Guards(hosts, run.id, needs) as guards:
                troubles = guards.look()
                for guard in guards.all:
                    if "looked" in guard.messages:
                        troubles += troubles_of(guard, needs, platform.machine())
    except FileNotFoundError as error:
        raise MissingPrecondition("ssh not found on this machine", hint="install OpenSSH's client") from error
    if troubles:
        raise UnusableHosts(hosts, troubles)


def _message(hosts: int, troubles: tuple[Trouble, ...]) -> str:
    lines = [f"  {each.host}: {each.what}" for each in troubles]
    count = len({each.host for each in troubles})
    return "\n".join([f"{count} of {hosts} host(s) cannot be used; nothing was started:", *lines])


def _hint(troubles: tuple[Trouble, ...]) -> str:
    """Return one fix for each kind of problem, for the first host that has it."""
    fixes: dict[str, str] = {}
    for each in troubles:
        fixes.setdefault(re.sub(re.escape(each.host), "", each.fix), each.fix.replace("{host}", each.host))
    return "\n      ".join(fixes.values())

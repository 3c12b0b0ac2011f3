"""The daemons of a cluster that run on this machine itself."""

from __future__ import annotations

import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import HidlError, ProcessFailed
from hidl_twin import dress as dress_
from hidl_twin import marks
from hidl_twin.layout import Layout

_STARTS = 180.0  # seconds that a daemon may take to answer
_ANSWERS = 20.0  # seconds that a living daemon may be busy
_ASKING = 5.0  # seconds that a question may take


class Service(ABC):
    """A daemon: how to start it, and how to check that it answers."""

    name: str
    reads: str | None = None  # the configuration file that it reads when it starts

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def start(self) -> None:
        """Start it, without waiting for an answer."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it works."""

    @property
    def pids(self) -> list[int]:
        return marks.find(self.layout.directory).get(self.name, [])

    def ensure(self) -> bool:
        """Start it if it does not answer; return whether it was started."""
        if self.pids and self._answers_within(_ANSWERS):
            return False
        self.stop()
        self.start()
        if not self._answers_within(_STARTS):
            raise HidlError(f"{self.name} does not answer", hint=f"see {self.layout.log(self.name)}")
        return True

    def stop(self) -> None:
        """Stop it."""
        marks.end(self.pids, signal.SIGTERM, 20)

    def kill(self) -> None:
        """Kill it, like a crash."""
        marks.end(self.pids, signal.SIGKILL, 10)

    def _answers_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > deadline or not self.pids:
                return False
            time.sleep(0.05)
        return True

    def _daemonize(self, *command: str | Path, variables: dict[str, str] | None = None) -> None:
        """Run a program that daemonizes itself."""
        environment = marks.environment(self.layout.directory, self.name) | (variables or {})
        environment["SLURM_CONF"] = str(self.layout.conf)
        try:
            process.run(command, env=environment, cwd=Path("/"), timeout=_STARTS)
        except ProcessFailed as error:
            raise HidlError(
                f"cannot start {self.name}: {error.output.strip() or error.message}",
                hint=f"see {self.layout.log(self.name)}",
            ) from error

    def _where_host_has_its_address(self, *command: str | Path) -> list[str | Path]:
        """Return the command line that runs ``command`` with the cluster's own /etc/hosts.

        Slurm's daemons bind to the address of the host's name; elsewhere on this machine that is often 127.0.1.1.
        """
        script = 'mount -n --bind "$1" /etc/hosts && shift && exec "$@"'
        return ["unshare", "--mount", "/bin/sh", "-c", script, "sh", self.layout["etc/hosts"], *command]

    def _succeeds(self, *command: str | Path) -> bool:
        completed = self._ask(*command)
        return completed is not None and completed.status == 0

    def _ask(self, *command: str | Path) -> process.Completed | None:
        """Run a command against the service; None if it hangs."""
        environment = marks.plain_environment() | {"SLURM_CONF": str(self.layout.conf)}
        with suppress(ProcessFailed):
            return process.run(command, env=environment, timeout=_ASKING, check=False)
        return None


class Munged(Service):
    """munge: authenticates all daemons and commands."""

    name = "munged"

    def start(self) -> None:
        """Start it. --force: above its directory others may write, as in /tmp."""
        self._daemonize(
            "munged",
            "--force",
            f"--key-file={self.layout['etc/munge.key']}",
            f"--socket={self.layout.munge_socket}",
            f"--pid-file={self.layout['run/munged.pid']}",
            f"--log-file={self.layout.log(self.name)}",
            f"--seed-file={self.layout['run/munge.seed']}",
        )

    def answers(self) -> bool:
        """Whether it creates a credential."""
        return self._succeeds("munge", "--no-input", "--socket", self.layout.munge_socket)


class MariaDb(Service):
    """The accounting database. It listens on a socket only, and authenticates root by the kernel."""

    name = "mariadbd"

    def start(self) -> None:
        """Start it; create its data directory first if missing."""
        data = self.layout["mysql"]
        if not data.is_dir():
            self._make_data_directory(data)
        log = self.layout.log(self.name)
        process.start_detached(
            [
                "mariadbd",
                "--no-defaults",
                "--user=root",
                f"--datadir={data}",
                f"--socket={self.layout.mariadb_socket}",
                f"--pid-file={self.layout['run/mariadbd.pid']}",
                "--skip-networking",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=16M",
                "--innodb-lock-wait-timeout=900",
                "--innodb-flush-log-at-trx-commit=2",
            ],
            cwd=Path("/"),
            env=marks.environment(self.layout.directory, self.name),
            stdout=log,
            stderr=log,
        )

    def answers(self) -> bool:
        """Whether it runs a statement, which creates the database if missing."""
        statement = "CREATE DATABASE IF NOT EXISTS slurm_acct_db"
        return self._succeeds("mariadb", "--no-defaults", "--socket", self.layout.mariadb_socket, "-e", statement)

    def _make_data_directory(self, data: Path) -> None:
        new = data.with_name("mysql.new")
        shutil.rmtree(new, ignore_errors=True)
        process.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                "--user=root",
                f"--datadir={new}",
                "--auth-root-authentication-method=socket",
                "--skip-test-db",
                "--innodb-log-file-size=16M",
            ],
            env=marks.environment(self.layout.directory, self.name),
            timeout=300,
            log=self.layout.log("mariadb-install-db"),
        )
        new.rename(data)


class Slurmdbd(Service):
    """slurmdbd: the accounting."""

    name = "slurmdbd"
    reads = "etc/slurmdbd.conf"

    def start(self) -> None:
        """Start it."""
        command = self._where_host_has_its_address("slurmdbd")
        self._daemonize(*command, variables={"MYSQL_UNIX_PORT": str(self.layout.mariadb_socket)})

    def answers(self) -> bool:
        """Whether it lists clusters."""
        return self._succeeds("sacctmgr", "--noheader", "list", "cluster")

    def ensure(self) -> bool:
        """Start it if needed, and register the cluster."""
        started = super().ensure()
        if started:  # status 1 where it knows it already
            dress = dress_.load(self.layout)
            self._succeeds(
                "sacctmgr", "--immediate", "--quiet", "add", "cluster", dress.cluster if dress else dress_.PLAIN
            )
        return started


class Slurmctld(Service):
    """slurmctld: the scheduler."""

    name = "slurmctld"
    reads = "etc/slurm.conf"

    def start(self) -> None:
        """Start it."""
        self._daemonize(*self._where_host_has_its_address("slurmctld", "-f", self.layout.conf))

    def answers(self) -> bool:
        """Whether it answers a ping."""
        completed = self._ask("scontrol", "ping")
        return completed is not None and " is UP" in completed.stdout


def of(layout: Layout, *, accounting: bool) -> list[Service]:
    """The services in starting order."""
    accountants: list[Callable[[Layout], Service]] = [MariaDb, Slurmdbd] if accounting else []
    return [make(layout) for make in (Munged, *accountants, Slurmctld)]

"""The nodes of a cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from hidl_cli import process
from hidl_cli.errors import HidlError
from hidl_twin import entry, marks, network
from hidl_twin.layout import Layout

_SECONDS = 120.0


class ClusterNode:
    """One node, running or not. ``daemons``: its services (sshd; slurmd on a compute node of Slurm).

    A login host has none, and this machine's network: it reaches what this machine reaches.
    """

    def __init__(
        self, layout: Layout, name: str, full_name: str | None = None, daemons: Sequence[str] = ("sshd", "slurmd")
    ) -> None:
        self.layout = layout
        self.name = name
        self.full_name = full_name or name
        self.daemons = daemons

    @property
    def init(self) -> int | None:
        """This machine's pid of the node's pid 1; None if the node is down."""
        found = marks.recorded(self.layout.directory, self.name)
        return found.pid if found else None

    def start(self, address: str) -> list[str]:
        """Start the node's missing parts at this address; return their names."""
        started = []
        init = self.init
        if init is None or not _is_ready(init):
            self.kill()
            init = self._boot()
            started.append("pid 1")
        if self.daemons:
            network.connect(self.layout, self.name, address)
        alive = self.services()
        if not alive.get("sshd", True):
            self.run(
                ["/usr/sbin/sshd", "-f", self.layout["etc/sshd_config"], "-E", self.layout.log(f"sshd-{self.name}")]
            )
            started.append("sshd")
        if not alive.get("slurmd", True):
            self.run(["slurmd", "-N", self.name, "-f", self.layout.conf])
            started.append("slurmd")
        return started

    def services(self) -> dict[str, bool]:
        """Whether its daemons run."""
        init = self.init
        members = marks.namespace_members(init) if init else []
        daemons = {member.name for member in members if member.parent == init}
        return {name: name in daemons for name in self.daemons}

    def processes(self) -> list[marks.Process]:
        """Processes of jobs and users on the node."""
        init = self.init
        members = marks.namespace_members(init) if init else []
        own = {member.pid for member in members if member.parent == init and member.name in ("sleep", "sshd", "slurmd")}
        return [member for member in members if member.pid not in own and member.pid != init]

    def run(self, command: Sequence[str | Path], timeout: float = _SECONDS) -> process.Completed:
        """Run a command on the node, as root and with a plain environment."""
        environment = marks.plain_environment() | {"SLURM_CONF": str(self.layout.conf)}
        return process.run(self.entering(command, Path("/")), env=environment, timeout=timeout)

    def entering(self, command: Sequence[str | Path], directory: Path) -> list[str | Path]:
        """The command line that runs ``command`` on the node, in ``directory`` if the node sees it, else in /.

        ``HidlError`` where the node is down.
        """
        found = marks.recorded(self.layout.directory, self.name)
        if found is None:
            claims = [f"; ignored {stranger}" for stranger in marks.strangers(self.layout.directory)]
            raise HidlError(f"{self.name} is down{''.join(claims)}", hint="hidl cluster up restarts it")
        return [*network.entering(found.identity, entry.KINDS, directory), *command]

    def kill(self) -> None:
        """End the node like a power cut: all its processes end with pid 1, and its cable is removed."""
        marks.end(marks.find(self.layout.directory).get(self.name, []), signal.SIGKILL, 10)

    def _boot(self) -> int:
        log = self.layout.log(self.name)
        self.layout[f"run/{self.name}"].mkdir(exist_ok=True)
        self.layout[f"spool/{self.name}"].mkdir(exist_ok=True)
        namespaces = [
            *(["--net"] if self.daemons else []),
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        command: list[str | Path] = ["unshare", *namespaces, "bash", self.layout["etc/node.sh"]]
        command += [self.name, self.full_name]
        environment = marks.environment(self.layout.directory, self.name)
        child = process.start_detached(command, cwd=Path("/"), env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and child.poll() is None:
            init = marks.pid_1_of_its_namespace(marks.find(self.layout.directory).get(self.name, []))
            if init is not None and _is_ready(init):
                marks.record(self.layout.directory, self.name, init)
                return init
            time.sleep(0.01)
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise HidlError(f"cannot start {self.name}: {''.join(tail)}", hint=f"see {log}")


def _is_ready(init: int) -> bool:
    return Path("/proc", str(init), "root", "run", "node-is-ready").exists()

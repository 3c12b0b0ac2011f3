"""The nodes of a cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from hidl_cli import process
from hidl_cli.cluster import marks, network
from hidl_cli.cluster.layout import Layout
from hidl_cli.cluster.settings import Settings
from hidl_cli.errors import HidlError

_SECONDS = 30.0


class Node:
    """One node, whether it lives or not."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout = layout
        self.name = name

    @property
    def init(self) -> int | None:
        """Its pid 1, by this machine's pid; None where the node is down."""
        return marks.pid_1_of_its_namespace(marks.find(self.layout.directory).get(self.name, []))

    def start(self, settings: Settings) -> list[str]:
        """Start what does not live of the node; returns what that was."""
        started = []
        init = self.init
        if init is None or not _is_ready(init):
            self.kill()
            init = self._boot()
            started.append("pid 1")
        network.connect(self.layout, settings, self.name, init)
        alive = self.services()
        if not alive["sshd"]:
            self.run(
                ["/usr/sbin/sshd", "-f", self.layout["etc/sshd_config"], "-E", self.layout.log(f"sshd-{self.name}")]
            )
            started.append("sshd")
        if not alive["slurmd"]:
            self.run(["slurmd", "-N", self.name, "-f", self.layout.conf])
            started.append("slurmd")
        return started

    def services(self) -> dict[str, bool]:
        """Whether its daemons live."""
        init = self.init
        members = marks.namespace_members(init) if init else []
        daemons = {member.name for member in members if member.parent == init}
        return {name: name in daemons for name in ("sshd", "slurmd")}

    def processes(self) -> list[marks.Process]:
        """What runs on the node, without what every node runs: that of jobs and of users."""
        init = self.init
        members = marks.namespace_members(init) if init else []
        own = {member.pid for member in members if member.parent == init and member.name in ("sleep", "sshd", "slurmd")}
        return [member for member in members if member.pid not in own and member.pid != init]

    def run(self, command: Sequence[str | Path], timeout: float = _SECONDS) -> process.Completed:
        """Run a command on the node, as root and with a plain environment."""
        init = self.init
        if init is None:
            raise HidlError(f"{self.name} is down", hint="bring the cluster up again: hidl cluster up")
        entering = ["nsenter", "--target", str(init), "--net", "--uts", "--ipc", "--mount", "--pid", "--root", "--wd"]
        environment = marks.plain_environment() | {"SLURM_CONF": str(self.layout.conf)}
        return process.run([*entering, *command], env=environment, timeout=timeout)

    def kill(self) -> None:
        """End the node as a power cut does: everything in it ends with its pid 1, and its cable goes."""
        marks.end(marks.find(self.layout.directory).get(self.name, []), signal.SIGKILL, 10)

    def _boot(self) -> int:
        log = self.layout.log(self.name)
        self.layout[f"run/{self.name}"].mkdir(exist_ok=True)
        self.layout[f"spool/{self.name}"].mkdir(exist_ok=True)
        namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command: list[str | Path] = ["unshare", *namespaces, "bash", self.layout["etc/node.sh"], self.name]
        environment = marks.environment(self.layout.directory, self.name)
        child = process.start_detached(command, cwd=Path("/"), env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and child.poll() is None:
            init = self.init
            if init is not None and _is_ready(init):
                return init
            time.sleep(0.01)
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise HidlError(f"{self.name} could not be started: {''.join(tail)}", hint=f"see {log}")


def _is_ready(init: int) -> bool:
    return Path(f"/proc/{init}/root/run/node-is-ready").exists()

"""A cluster as a whole: up, down, status."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hidl_cli import paths, process
from hidl_cli.cluster import files, marks, network, packages, services, subnets
from hidl_cli.cluster import settings as settings_
from hidl_cli.cluster.layout import Layout
from hidl_cli.cluster.nodes import Node
from hidl_cli.cluster.settings import Settings
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.quoting import sh
from hidl_cli.stack.exclusive import held

_LOCKS = Path("/run/hidl")  # of this boot, as all that it guards is
_USABLE_SECONDS = 60.0
_USABLE = ("idle", "mixed", "allocated", "completing", "drain", "maint", "reserved", "planned")


class Cluster:
    """The cluster in a directory. ``say`` gets lines of progress."""

    def __init__(self, directory: Path | None = None, say: Callable[[str], None] = lambda _: None) -> None:
        self.layout = Layout.of(directory)
        self._say = say

    @property
    def settings(self) -> Settings:
        """What it was asked to be; ``MissingPrecondition`` where there is no cluster."""
        found = settings_.load(self.layout)
        if found is None:
            raise MissingPrecondition(
                f"there is no cluster in {self.layout.directory}", hint="bring one up: hidl cluster up"
            )
        return found

    @property
    def nodes(self) -> dict[str, Node]:
        """Its nodes by name."""
        return {name: Node(self.layout, name) for name in self.settings.node_names}

    @property
    def environment_lines(self) -> str:
        """What a POSIX shell evaluates to use the cluster."""
        _ = self.settings
        return f"export SLURM_CONF={sh(str(self.layout.conf))}\n"

    def service(self, name: str) -> services.Service:
        """The named service; ``UsageError`` where the cluster has none of that name."""
        for service in self._services(self.settings):
            if service.name == name:
                return service
        raise UsageError(f"the cluster has no {name}")

    def up(self, **wishes: Any) -> Settings:
        """Make the cluster be as wished (see ``Settings``; None: as it was, or the default), and whole.

        What lives and fits stays as it is. Raises ``MissingPrecondition`` where no cluster can be had here,
        ``UsageError`` for an impossible wish and ``HidlError`` where a part does not start.
        """
        _, wanted = self._wanted(wishes)
        if (reason := packages.obstacle(accounting=wanted.accounting)) is not None:
            raise reason
        with self._locked():
            before, wanted = self._wanted(wishes)
            self.layout.make()
            packages.install(accounting=wanted.accounting, log=self.layout.log("apt-get"), say=self._say)
            with held(_LOCKS / "networks" / "lock", self._say):
                wanted = wanted.changed(subnet=subnets.choose(self.layout, wanted.subnet))
                if before is not None and not before.same_nodes(wanted):
                    self._say("other nodes are asked for: taking the cluster down first")
                    self._end_processes(before)
                settings_.save(self.layout, wanted)
                if network.ensure_switch(self.layout, wanted):
                    self._say(f"network {wanted.prefix}0/24 made")
            changed = files.write(self.layout, wanted)
            self._ensure_services(wanted, changed)
            self._ensure_nodes(wanted, changed)
        return wanted

    def down(self, *, purge: bool = False) -> None:
        """End all of it, whatever is left of it; with ``purge``, remove the directory with its history too."""
        if (reason := packages.not_root_of_linux()) is not None:
            raise reason
        with self._locked():
            self._end_processes(settings_.load(self.layout), in_good_order=not purge)
            if purge and self.layout.remove():
                self._say(f"{self.layout.directory} removed")

    def restart(self, service: str) -> None:
        """End a service in good order and start it again."""
        with self._locked():
            found = self.service(service)
            found.stop()
            found.ensure()

    def start_node(self, name: str) -> None:
        """Start a node that is down, or what is down of it; Slurm knows of it a little later."""
        with self._locked():
            self.nodes[name].start(self.settings)

    def status(self) -> dict[str, Any]:
        """What of the cluster lives, and what Slurm says of its nodes: plain values."""
        if (reason := packages.not_root_of_linux()) is not None:
            raise reason  # whose processes are whose is told to root alone
        settings = self.settings
        daemons = [_daemon(service) for service in self._services(settings)]
        states = self._node_states() if daemons[-1]["answers"] else {}
        return {
            "directory": str(self.layout.directory),
            "slurm_conf": str(self.layout.conf),
            "network": f"{settings.prefix}0/24",
            "accounting": settings.accounting,
            "enforce_limits": settings.enforce_limits,
            "daemons": daemons,
            "nodes": [
                {"name": name, "address": settings.address(name), "pid": node.init}
                | node.services()
                | {"state": states.get(name)}
                for name, node in self.nodes.items()
            ],
        }

    def _wanted(self, wishes: dict[str, Any]) -> tuple[Settings | None, Settings]:
        """What the cluster was asked to be before, and what it shall be now."""
        before = settings_.load(self.layout)
        return before, (before or Settings(shares=shared())).changed(**wishes)

    def _services(self, settings: Settings) -> list[services.Service]:
        return services.of(self.layout, accounting=settings.accounting)

    def _ensure_services(self, settings: Settings, changed: frozenset[str]) -> None:
        wanted = self._services(settings)
        for service in reversed(services.of(self.layout, accounting=True)):
            if service.reads in changed or service.name not in {other.name for other in wanted}:
                service.stop()
        for service in wanted:
            if service.ensure():
                self._say(f"{service.name} started")

    def _ensure_nodes(self, settings: Settings, changed: frozenset[str]) -> None:
        for share in settings.shares:
            Path(share).mkdir(parents=True, exist_ok=True)
        for name, node in self.nodes.items():
            if started := node.start(settings):
                self._say(f"{name} at {settings.address(name)}: {', '.join(started)} started")
        if "etc/slurm.conf" in changed:
            self.command("scontrol", "reconfigure")
        deadline = time.monotonic() + _USABLE_SECONDS
        while lost := {name: state for name, state in self._node_states().items() if not state.startswith(_USABLE)}:
            if time.monotonic() > deadline:
                told = ", ".join(f"{name} is {state}" for name, state in lost.items())
                raise HidlError(f"nodes do not become usable: {told}", hint=f"see {self.layout['log']}")
            for name in (name for name, state in lost.items() if state == "down"):
                self.command("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            time.sleep(0.1)

    def _node_states(self) -> dict[str, str]:
        """The state of each node as sinfo tells it; a ``*`` at its end: it does not answer."""
        completed = self.command("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T", check=False)
        return dict(re.findall(r"^(\S+) (\S+)$", completed.stdout, re.MULTILINE))

    def command(self, *words: str, timeout: float = 30, check: bool = True) -> process.Completed:
        """Run one of Slurm's commands on this machine against the cluster."""
        environment = marks.plain_environment() | {"SLURM_CONF": str(self.layout.conf)}
        return process.run(words, env=environment, timeout=timeout, check=check)

    def _end_processes(self, settings: Settings | None, *, in_good_order: bool = True) -> None:
        """End everything that carries the cluster's mark, the nodes first; then the network.

        In good order the daemons write down what they know, which may take them many seconds.
        """
        known = {service.name: service for service in reversed(services.of(self.layout, accounting=True))}
        roles = marks.find(self.layout.directory)
        for node in sorted(roles.keys() - known.keys() - {network.ROLE}):
            Node(self.layout, node).kill()
            self._say(f"{node} ended")
        for name, service in known.items():
            if name in roles:
                if in_good_order:
                    service.stop()
                else:
                    service.kill()
                self._say(f"{name} ended")
        if shutil.which("ip", path=marks.plain_environment()["PATH"]):
            network.remove_switch(self.layout, settings)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        name = str(self.layout.directory).strip("/").replace("/", "-")
        with held(_LOCKS / name / "lock", self._say):
            yield


def _daemon(service: services.Service) -> dict[str, Any]:
    pids = service.pids
    return {"name": service.name, "pid": min(pids, default=None), "answers": bool(pids) and service.answers()}


def shared(named: Sequence[Path] = ()) -> tuple[str, ...]:
    """The directories that are to be seen on the nodes although they lie in places that each node has for itself.

    These are the ones named, the user's home, hidl's own directories, and the interpreter with its libraries.
    ``UsageError`` for one that was named and is not there.
    """
    for share in named:
        if not share.is_dir():
            raise UsageError(f"--share {share}: there is no such directory")
    own = [paths.user_data(), paths.user_state(), paths.user_config(), paths.user_cache()]
    own += [Path.home(), paths.shipped(), Path(sys.prefix), Path(sys.base_prefix)]
    seen = (place for path in (*named, *own) for place in (path.absolute(), path.resolve()))
    return tuple(sorted({str(place) for place in seen if files.is_private(place)}))

"""A cluster as a whole: up, down, status."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hidl_cli import paths, process
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.quoting import sh
from hidl_cli.stack.installation import hold_lock
from hidl_twin import dress as dress_
from hidl_twin import files, marks, network, packages, services, subnets
from hidl_twin import settings as settings_
from hidl_twin.batch import service as batch
from hidl_twin.batch import twin as batch_twin
from hidl_twin.batch.store import Store
from hidl_twin.batch.systems import SYSTEMS
from hidl_twin.claimed.build import claim
from hidl_twin.claimed.of_dress import claimed_by
from hidl_twin.dress import Dress
from hidl_twin.layout import RUNTIME, Layout, make_runtime_directory
from hidl_twin.nodes import ClusterNode
from hidl_twin.settings import Settings
from hidl_twin.twin import surroundings as twin
from hidl_twin.twin import truth
from hidl_twin.twin.users import Users

_USABLE_SECONDS = 180.0
_USABLE = ("idle", "mixed", "allocated", "completing", "drain", "maint", "reserved", "planned")


class Cluster:
    """The cluster in a directory. ``say`` gets lines of progress."""

    def __init__(
        self, directory: Path | None = None, say: Callable[[str], None] = lambda _: None, *, like: str | None = None
    ) -> None:
        self.layout = Layout.of(directory, like)
        self.like = like
        self._say = say

    @property
    def settings(self) -> Settings:
        """The cluster's settings; ``MissingPrecondition`` if there is no cluster."""
        found = settings_.load(self.layout)
        if found is None:
            option = f" --like {sh(self.like)}" if self.like else ""
            raise MissingPrecondition(f"no cluster in {self.layout.directory}", hint=f"hidl cluster up{option}")
        return found

    @property
    def dress(self) -> Dress:
        """The dress of the last ``up``."""
        return dress_.load(self.layout) or self.settings.dress()

    @property
    def nodes(self) -> dict[str, ClusterNode]:
        """Nodes by name, including a login host."""
        return self._nodes(self.dress)

    @property
    def environment_lines(self) -> str:
        """Lines for a POSIX shell to evaluate to use the cluster."""
        _ = self.settings
        return "".join(f"export {name}={sh(value)}\n" for name, value in self.surroundings.items())

    @property
    def surroundings(self) -> dict[str, str]:
        """Variables that lead users to the scheduler, and on a twin to the site's modules and programs."""
        return twin.surroundings(self.layout, self.dress)

    @property
    def users(self) -> Users:
        """The directories of a twin's users."""
        return Users(self.layout["users"])

    def at_login(
        self, command: Sequence[str | Path], environment: Mapping[str, str]
    ) -> tuple[list[str | Path], dict[str, str]]:
        """The command line and the environment that run ``command`` on the twin's login host.

        In the present directory, if the login host sees it. ``UsageError`` if the cluster is not a twin.
        """
        name = self.dress.login_name
        if name is None:
            raise UsageError(
                "this cluster has no login host; use this machine",
                hint='eval "$(hidl cluster env)"; a twin has one: hidl cluster up --like SITE',
            )
        surrounded = {**environment, **twin.surroundings(self.layout, self.dress, environment)}
        return self.nodes[name].entering(command, Path.cwd()), surrounded

    def service(self, name: str) -> services.Service:
        """The named service; ``UsageError`` if unknown."""
        for service in self._services(self.settings):
            if service.name == name:
                return service
        raise UsageError(f"unknown service {name} of this cluster")

    def up(self, **wishes: Any) -> Settings:
        """Bring the cluster up with the given settings (see ``Settings``; None: unchanged, or the default).

        Whatever runs with these settings keeps running. Raises ``MissingPrecondition`` if this machine cannot run a
        cluster, ``UsageError`` for invalid settings and ``HidlError`` if a part does not start.
        """
        _, wanted = self._wanted(wishes)
        dress = wanted.dress()
        is_twin = dress.site is not None
        if is_twin and dress.scheduler == "slurm" and self.layout.directory.parts[-2:] == ("hidl", "cluster"):
            raise UsageError(
                f"invalid directory {self.layout.directory}: a twin there would match site test-cluster too",
                hint="choose a --directory that does not end in hidl/cluster",
            )
        self.layout.check()
        claimed = claimed_by(dress)
        wants = {"accounting": wanted.accounting, "twin": is_twin, "claims": bool(claimed)}
        if (reason := packages.obstacle(**wants)) is not None:
            raise reason
        with self._locked():
            before, wanted = self._wanted(wishes)
            self.layout.check()
            self.layout.make()
            log = self.layout.log("apt-get")
            packages.install(**wants, log=log, say=self._say)
            claims_changed = claim(self.layout["claimed"], claimed)
            with hold_lock(RUNTIME / "networks" / "lock", self._say):
                wanted = wanted.changed(subnet=subnets.choose(self.layout, wanted.subnet))
                same = before is not None and before.same_nodes(wanted) and dress_.load(self.layout) in (None, dress)
                if before is not None and (claims_changed or not same):
                    self._say("different nodes requested: taking the cluster down first")
                    self._end_processes(before)
                settings_.save(self.layout, wanted)
                dress_.save(self.layout, dress)
                if network.ensure_switch(self.layout, wanted):
                    self._say(f"network {wanted.prefix}0/24 created")
            if is_twin:
                twin.furnish(self.layout, dress, self._say)
                self.users.make()
            changed = files.write(self.layout, wanted, dress)
            if (system := SYSTEMS.get(dress.scheduler)) is not None:
                login = twin.surroundings(self.layout, dress, {})
                batch.write(system, self.layout[system.name], batch_twin.settings_of(system, self.layout, dress, login))
            self._ensure_services(wanted, changed)
            self._ensure_nodes(wanted, dress, changed)
        return wanted

    def down(self, *, purge: bool = False) -> None:
        """Stop whatever is left of the cluster; with ``purge``, remove its files and history too.

        Raises ``UsageError``, before it stops anything, for a directory that is not a cluster's.
        """
        if (reason := packages.not_root_of_linux()) is not None:
            raise reason
        if purge:
            self.layout.check_removable()
        with self._locked():
            self._end_processes(settings_.load(self.layout), in_good_order=not purge)
            if purge and self.layout.directory.exists():
                self._say(f"removing the cluster in {self.layout.directory}")
                if remaining := self.layout.remove():
                    self._say(f"not the cluster's, kept: {', '.join(remaining)}")
            marks.forget(self.layout.directory)

    def restart(self, service: str) -> None:
        """Restart a service."""
        with self._locked():
            found = self.service(service)
            found.stop()
            found.ensure()

    def start_node(self, name: str) -> None:
        """Start a node or its missing daemons; Slurm notices a little later."""
        with self._locked():
            self.nodes[name].start(self.settings.addresses(self.dress)[name])

    def status(self) -> dict[str, Any]:
        """State of daemons and nodes, as plain values."""
        if (reason := packages.not_root_of_linux()) is not None:
            raise reason  # whose processes are whose is told to root alone
        settings, dress = self.settings, self.dress
        addresses = settings.addresses(dress)
        daemons = [_daemon(service) for service in self._services(settings)]
        states = self._node_states() if daemons and daemons[-1]["answers"] else {}
        return {
            "directory": str(self.layout.directory),
            "like": settings.like,
            **({"true": truth.true_of(dress), "not_true": truth.not_true_of(dress)} if settings.like else {}),
            "slurm_conf": str(self.layout.conf) if dress.scheduler == "slurm" else None,
            **{
                system.variable.lower(): str(system.place(self.layout[name])) if dress.scheduler == name else None
                for name, system in SYSTEMS.items()
            },
            "network": f"{settings.prefix}0/24",
            "accounting": settings.accounting,
            "enforce_limits": settings.enforce_limits,
            "daemons": daemons,
            "ignored": marks.strangers(self.layout.directory),
            "nodes": [
                {"name": name, "address": addresses[name], "pid": node.init}
                | node.services()
                | {"state": states.get(name)}
                for name, node in self.nodes.items()
            ],
        }

    def _wanted(self, wishes: dict[str, Any]) -> tuple[Settings | None, Settings]:
        """Previous and requested settings."""
        before = settings_.load(self.layout)
        return before, (before or Settings(shares=shared())).changed(**wishes)

    def _services(self, settings: Settings) -> list[services.Service]:
        if (system := SYSTEMS.get(self.dress.scheduler)) is not None:
            return [batch.Daemon(self.layout, system)]
        return services.of(self.layout, accounting=settings.accounting) if self.dress.scheduler == "slurm" else []

    def _all_services(self) -> list[services.Service]:
        """All services of a cluster, the last to start first."""
        return [
            *(batch.Daemon(self.layout, system) for system in SYSTEMS.values()),
            *reversed(services.of(self.layout, accounting=True)),
        ]

    def _ensure_services(self, settings: Settings, changed: frozenset[str]) -> None:
        wanted = self._services(settings)
        for service in self._all_services():
            if service.reads in changed or service.name not in {other.name for other in wanted}:
                service.stop()
        for service in wanted:
            if service.ensure():
                self._say(f"{service.name} started")

    def _nodes(self, dress: Dress) -> dict[str, ClusterNode]:
        def daemons(name: str) -> tuple[str, ...]:
            if name == dress.login_name:
                return ()
            return ("sshd", "slurmd") if dress.scheduler == "slurm" else ("sshd",)

        return {name: ClusterNode(self.layout, name, full, daemons(name)) for name, full in dress.machines.items()}

    def _ensure_nodes(self, settings: Settings, dress: Dress, changed: frozenset[str]) -> None:
        for share in settings.shares:
            Path(share).mkdir(parents=True, exist_ok=True)
        addresses = settings.addresses(dress)
        for name, node in self._nodes(dress).items():
            if started := node.start(addresses[name]):
                self._say(f"{name} at {addresses[name]}: {', '.join(started)} started")
        network.wait_until_reached(addresses.values())
        if dress.scheduler != "slurm":  # a stand-in takes a host for what ssh finds there
            return
        if "etc/slurm.conf" in changed:
            self.command("scontrol", "reconfigure")
        deadline = time.monotonic() + _USABLE_SECONDS
        while lost := {name: state for name, state in self._node_states().items() if not state.startswith(_USABLE)}:
            if time.monotonic() > deadline:
                told = ", ".join(f"{name} is {state}" for name, state in lost.items())
                raise HidlError(f"nodes not usable: {told}", hint=f"see {self.layout['log']}")
            for name in (name for name, state in lost.items() if state == "down"):
                self.command("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            time.sleep(0.1)

    def _node_states(self) -> dict[str, str]:
        """State of each node as sinfo, bhosts, ... print it; a trailing ``*`` (sinfo): not responding."""
        if (system := SYSTEMS.get(self.dress.scheduler)) is not None:
            return system.host_states(Store(self.layout[system.name]))
        completed = self.command("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        return dict(re.findall(r"^(\S+) (\S+)$", completed.stdout, re.MULTILINE))

    def command(self, *words: str, timeout: float = 120, check: bool = True) -> process.Completed:
        """Run one of Slurm's commands on this machine against the cluster."""
        environment = marks.plain_environment() | {"SLURM_CONF": str(self.layout.conf)}
        return process.run(words, env=environment, timeout=timeout, check=check)

    def _end_processes(self, settings: Settings | None, *, in_good_order: bool = True) -> None:
        """Stop all processes with the cluster's mark, nodes first; then remove the network.

        In good order the daemons write down what they know, which may take them many seconds.
        """
        known = {service.name: service for service in self._all_services()}
        roles = marks.find(self.layout.directory)
        for node in sorted(roles.keys() - known.keys() - {network.ROLE}):
            ClusterNode(self.layout, node).kill()
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
        with hold_lock(make_runtime_directory(self.layout.directory) / "lock", self._say):
            for stranger in marks.strangers(self.layout.directory):
                self._say(f"warning: ignored {stranger}")
            yield


def _daemon(service: services.Service) -> dict[str, Any]:
    pids = service.pids
    return {"name": service.name, "pid": min(pids, default=None), "answers": bool(pids) and service.answers()}


def shared(named: Sequence[Path] = ()) -> tuple[str, ...]:
    """Directories to share with the nodes although they lie in private places of each node.

    These are the ones named, the user's home, hidl's own directories, and the interpreter with its libraries.
    ``UsageError`` for one that was named and is not there.
    """
    for share in named:
        if not share.is_dir():
            raise UsageError(f"--share {share}: directory not found")
    own = [paths.user_data(), paths.user_state(), paths.user_config(), paths.user_cache()]
    own += [Path.home(), paths.shipped(), Path(sys.prefix), Path(sys.base_prefix)]
    seen = (place for path in (*named, *own) for place in (path.absolute(), path.resolve()))
    return tuple(sorted({str(place) for place in seen if files.is_private(place)}))

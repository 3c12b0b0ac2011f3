"""Requested settings of a cluster, saved in its directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hidl_cli.documents import read_json
from hidl_cli.errors import UsageError
from hidl_cli.site.machine import machine
from hidl_twin import dress as dress_
from hidl_twin.dress import Dress
from hidl_twin.layout import Layout
from hidl_twin.twin.of_site import dress_of

MAX_NODES = 64  # all of them work on 2 cores: tests/cluster/test_sizes.py
MEMORY_MIB = 4096


@dataclass(frozen=True)
class Settings:
    """``subnet`` is the K of 10.77.K.0/24; None: not chosen yet. ``shares`` are directories.

    Each node has as many CPUs as this machine has cores. One that is to have more claims them: see ``claimed``.
    ``like``: the site that the cluster is a twin of; ``nodes`` is then the number of each kind that the site has, and
    what they claim is the site's. ``None``: a plain cluster.
    """

    nodes: int = 4
    cpus_per_node: int = field(default_factory=lambda: machine().cores)
    accounting: bool = True
    enforce_limits: bool = True
    shares: tuple[str, ...] = ()
    subnet: int | None = None
    like: str | None = None

    def dress(self) -> Dress:
        """The cluster's dress; that of a twin comes from the site's file."""
        if self.like is None:
            return dress_.plain(self.nodes, self.cpus_per_node, MEMORY_MIB)
        return dress_of(self.like, self.nodes)

    @property
    def controller_address(self) -> str:
        """This machine's address in the cluster's network."""
        return f"10.77.{self.subnet}.1"

    @property
    def prefix(self) -> str:
        """Common prefix of all addresses."""
        return f"10.77.{self.subnet}."

    @property
    def slurmctld_port(self) -> int:
        """First port, distinct per subnet and below the kernel's ephemeral range (32768 and up)."""
        return 30000 + 2 * (self.subnet or 0)

    @property
    def slurmdbd_port(self) -> int:
        return self.slurmctld_port + 1

    def addresses(self, dress: Dress) -> dict[str, str]:
        """The addresses of all nodes by name: the first one has 10.77.K.11, a login host this machine's."""
        own = (name for name in dress.machines if name != dress.login_name)
        found = {name: f"{self.prefix}{number}" for number, name in enumerate(own, start=11)}
        return found | ({dress.login_name: self.controller_address} if dress.login_name else {})

    def changed(self, **wishes: Any) -> Settings:
        """These settings with the given ones (None: unchanged); ``UsageError`` if invalid."""
        new = replace(self, **{name: value for name, value in wishes.items() if value is not None})
        if not 1 <= new.nodes <= MAX_NODES:
            raise UsageError(f"invalid number of nodes {new.nodes}: must be 1 to {MAX_NODES}")
        if not 1 <= new.cpus_per_node <= 1024:
            raise UsageError(f"invalid number of CPUs per node {new.cpus_per_node}: must be 1 to 1024")
        return new

    def same_nodes(self, other: Settings) -> bool:
        """Whether nodes can be kept between the two settings."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("nodes", "cpus_per_node", "shares", "subnet", "like")
        )


def load(layout: Layout) -> Settings | None:
    """Load the last settings; None if missing or invalid."""
    try:
        document = read_json(layout.settings)
        known = {field.name: document[field.name] for field in fields(Settings)}
        return Settings(**(known | {"shares": tuple(document["shares"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(layout: Layout, settings: Settings) -> None:
    """Save ``settings``."""
    layout.save(asdict(settings))

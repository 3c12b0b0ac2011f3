"""What the user asked a cluster to be, remembered in its directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hidl_cli.cluster.layout import Layout
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import UsageError
from hidl_cli.site.machine import machine

MAX_NODES = 64
MEMORY_MIB = 4096


@dataclass(frozen=True)
class Settings:
    """``subnet`` is the K of 10.77.K.0/24; None: not chosen yet. ``shares`` are directories.

    Each node claims as many CPUs as this machine has cores: launchers bind ranks to cores, and see no others.
    """

    nodes: int = 4
    cpus_per_node: int = field(default_factory=lambda: machine().cores)
    accounting: bool = True
    enforce_limits: bool = True
    shares: tuple[str, ...] = ()
    subnet: int | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    @property
    def controller_address(self) -> str:
        """This machine's address in the cluster's network."""
        return f"10.77.{self.subnet}.1"

    @property
    def prefix(self) -> str:
        """The begin that all addresses share."""
        return f"10.77.{self.subnet}."

    @property
    def slurmctld_port(self) -> int:
        """Below the range that the kernel gives to clients (32768 and up), and another one for each subnet."""
        return 30000 + 2 * (self.subnet or 0)

    @property
    def slurmdbd_port(self) -> int:
        return self.slurmctld_port + 1

    def address(self, node: str) -> str:
        """The address of a node: node1 has 10.77.K.11."""
        return f"{self.prefix}{10 + int(node.removeprefix('node'))}"

    def changed(self, **wishes: Any) -> Settings:
        """These settings with each wish that is not None; ``UsageError`` for one that cannot be."""
        new = replace(self, **{name: value for name, value in wishes.items() if value is not None})
        if not 1 <= new.nodes <= MAX_NODES:
            raise UsageError(f"a cluster has 1 to {MAX_NODES} nodes, not {new.nodes}")
        if not 1 <= new.cpus_per_node <= 1024:
            raise UsageError(f"a node has 1 to 1024 CPUs, not {new.cpus_per_node}")
        return new

    def same_nodes(self, other: Settings) -> bool:
        """Whether the nodes of one can stay when the other is asked for."""
        return all(
            getattr(self, name) == getattr(other, name) for name in ("nodes", "cpus_per_node", "shares", "subnet")
        )


def load(layout: Layout) -> Settings | None:
    """What was asked for last; None where there is no cluster, or its file cannot be understood."""
    try:
        document = read_json(layout.settings)
        known = {field.name: document[field.name] for field in fields(Settings)}
        return Settings(**(known | {"shares": tuple(document["shares"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(layout: Layout, settings: Settings) -> None:
    """Remember ``settings``."""
    write_json(layout.settings, {"schema": "hidl.cluster/1", **asdict(settings)})

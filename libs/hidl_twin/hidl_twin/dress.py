"""What Slurm and users see of a cluster: name, hosts and partitions.

A plain cluster has nodes ``node1``, ``node2``, ...; a twin (``hidl cluster up --like SITE``) those of its site, and a
login host besides. Computed when the cluster is brought up, and saved in its directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hidl_cli.documents import read_json, write_json
from hidl_cli.site import hidl_cluster
from hidl_twin.layout import Layout

SCHEMA = "hidl.cluster-dress/1"

PLAIN = "hidl"


@dataclass(frozen=True)
class Host:
    """A compute node: ``name`` is the scheduler's, ``full_name`` what ``hostname`` prints there.

    It reports ``sockets`` x ``cores_per_socket`` x ``threads_per_core`` CPUs, ``memory_mib`` and ``gpus``.
    """

    name: str
    full_name: str
    kind: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int
    cpu: str | None = None
    gpus: int = 0
    gpu_model: str | None = None
    features: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        """Logical processors."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


@dataclass(frozen=True)
class Limit:
    """A partition of the site's file: which jobs belong to it, and their limits.

    ``queue``, ``qos`` and ``constraint``: what such a job asks for; None: nothing. ``walls`` are (nodes, minutes): the
    longest run time of jobs of up to so many nodes, 0: of any number.
    """

    queue: str | None
    qos: str | None
    constraint: str | None
    min_nodes: int
    max_nodes: int | None
    walls: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Queue:
    """A partition or queue of the scheduler. ``max_minutes`` and ``max_nodes``: None if unlimited."""

    name: str
    hosts: tuple[str, ...]
    default: bool = False
    min_nodes: int = 1
    max_nodes: int | None = None
    max_minutes: int | None = None
    whole_nodes: bool = False


@dataclass(frozen=True)
class Dress:
    """Name, hosts and partitions of a cluster. ``login``: full name of the login host; None: this machine itself.
    ``launch``: the host beside the compute nodes that runs the scripts of LSF's jobs.

    ``rules`` are what a job must and must not say: options (``account``, ``partition``, ``qos``, ...) ->
    ``required`` or ``never``, and ``node_names`` -> ``never``. ``srun_mpi``: Slurm's default for ``srun --mpi=``.
    """

    cluster: str
    site: str | None
    scheduler: str
    hosts: tuple[Host, ...]
    queues: tuple[Queue, ...]
    login: str | None = None
    launch: str | None = None
    limits: tuple[Limit, ...] = ()
    rules: Mapping[str, str] | None = None
    srun_mpi: str = "pmi2"

    @property
    def names(self) -> tuple[str, ...]:
        """The compute nodes, by the scheduler's names."""
        return tuple(host.name for host in self.hosts)

    @property
    def login_name(self) -> str | None:
        """The login host's name as a node of the cluster: the first word of its full name."""
        return self.login.partition(".")[0] if self.login else None

    @property
    def machines(self) -> dict[str, str]:
        """All nodes, the login host last: name -> full name."""
        found = {host.name: host.full_name for host in self.hosts}
        if self.launch:
            found[self.launch] = self.launch
        if self.login and self.login_name:
            found[self.login_name] = self.login
        return found

    def host(self, name: str) -> Host | None:
        """The compute node of that name; None for the login host."""
        return next((host for host in self.hosts if host.name == name), None)


def plain(nodes: int, cpus: int, memory_mib: int) -> Dress:
    """Dress of a plain cluster: node1, node2, ..., a partition of all nodes and a small one."""
    hosts = tuple(
        Host(f"node{number}", f"node{number}", "node", 1, cpus, 1, memory_mib) for number in range(1, nodes + 1)
    )
    names = tuple(host.name for host in hosts)
    queues = (
        Queue("debug", names, default=True, max_minutes=60),
        Queue("small", names[:2], max_nodes=2, max_minutes=5),
    )
    return Dress(PLAIN, None, "slurm", hosts, queues)


def load(layout: Layout) -> Dress | None:
    """Load the dress of the cluster in a directory; None if missing or invalid."""
    try:
        document = read_json(layout[hidl_cluster.DRESS])
        if document.pop("schema") != SCHEMA:
            return None
        hosts = tuple(Host(**(host | {"features": tuple(host["features"])})) for host in document.pop("hosts"))
        queues = tuple(Queue(**(queue | {"hosts": tuple(queue["hosts"])})) for queue in document.pop("queues"))
        limits = tuple(Limit(**(limit | {"walls": _pairs(limit["walls"])})) for limit in document.pop("limits"))
        return Dress(**document, hosts=hosts, queues=queues, limits=limits)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(layout: Layout, dress: Dress) -> None:
    """Save it."""
    write_json(layout[hidl_cluster.DRESS], {"schema": SCHEMA, **asdict(dress)})


def _pairs(found: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(nodes), int(minutes)) for nodes, minutes in found)


def host_name(text: str) -> str:
    """Return ``text`` as a valid host name: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-") or "node"

"""Which nodes of a cluster claim processors: those that say what this machine may not have."""

from __future__ import annotations

from hidl_cli.site.machine import machine
from hidl_twin.claimed.processors import Processors
from hidl_twin.dress import Dress


def claimed_by(dress: Dress) -> dict[str, Processors]:
    """The processors of each node of a twin, and of a plain cluster whose nodes have more than this machine; by name.

    Empty where nodes show this machine's own processors.
    """
    if dress.site is None and max(host.cpus for host in dress.hosts) <= machine().cores:
        return {}
    return {
        host.name: Processors(host.sockets * host.cores_per_socket, host.sockets, host.threads_per_core, host.cpu)
        for host in dress.hosts
    }

"""The nodes of one job, compared with each other and with the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hidl_workloads.doctor.finding import Evidence, Rules, Severity
from hidl_workloads.doctor.node import Node, Room

_NETWORKED = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "afs",
    "panfs",
    "orangefs",
    "pvfs2",
    "glusterfs",
)
_SKEW_SECONDS = 0.1
_SKEW_FATAL = 300.0  # munge and Kerberos refuse what is older: munge.conf(5) --ttl, krb5.conf(5) clockskew
_NAMED = 8


@dataclass(frozen=True)
class Nodes:
    """What the nodes told, of the ``hosts`` that were asked between ``began`` and ``ended``.

    Both are in seconds since the epoch, by the clock of the node that asked. ``outside``: a host that is not of the
    job (where hidl runs); ``said``: what was complained about meanwhile.
    """

    nodes: tuple[Node, ...]
    hosts: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    outside: Node | None = None
    said: str = ""

    @property
    def silent(self) -> tuple[str, ...]:
        """The hosts without an answer."""
        told = {_short(node.host) for node in self.nodes}
        return tuple(host for host in self.hosts if _short(host) not in told)

    @property
    def of_one_machine(self) -> tuple[Node, ...]:
        """The nodes whose machine also runs another node, or the host outside. A host that answers twice is two."""
        names = {node.host for node in self.nodes}
        outside = (self.outside,) if self.outside and self.outside.host not in names else ()
        boots = Counter(node.boot for node in (*self.nodes, *outside) if node.boot)
        return tuple(node for node in self.nodes if boots[node.boot] > 1)


RULES: Rules[Nodes] = Rules()


@RULES.rule(
    "HD042",
    "Nodes share a directory for temporary files",
    severity="warning",
    why="Names in /tmp and /dev/shm are unique per node, not per cluster: sockets and session directories of PMIx, "
    "Open MPI and Ray collide with those of other nodes.",
)
def shared_directories(facts: Nodes) -> Iterator[Evidence]:
    """The same directory on several nodes: a network file system, or one machine."""
    for name, room_of in (("TMPDIR", _tmp), ("/dev/shm", _shm)):
        places: dict[tuple[str | None, ...], list[Node]] = {}
        for node in facts.nodes:
            room = room_of(node)
            if room is not None and (place := _place(room, node)) is not None:
                places.setdefault(place, []).append(node)
        for nodes in places.values():
            room = room_of(nodes[0])
            if len({node.host for node in nodes}) > 1 and room is not None:
                fix = "use a local directory of each node: export TMPDIR=/tmp, or job_container/tmpfs in Slurm"
                seen = f"{room.path} is the same ({room.type} {room.source}) on {_hosts(nodes)}"
                yield Evidence(seen, fix if name == "TMPDIR" else "mount a tmpfs on /dev/shm of each node")


@RULES.rule(
    "HD049",
    "Clocks differ between nodes",
    severity="warning",
    why="Caches, make, file times and log lines of several nodes are ordered wrongly; above 5 minutes, munge and "
    "Kerberos refuse credentials, and Slurm fails.",
)
def clock_skew(facts: Nodes) -> Iterator[Evidence]:
    """A node's time is outside the interval of its query, by the clock of the first node."""
    if facts.began is None or facts.ended is None:
        return
    for node in facts.nodes:
        if node.time is None:
            continue
        skew = max(facts.began - node.time, node.time - facts.ended)
        if skew > _SKEW_SECONDS:
            way = "behind" if node.time < facts.began else "ahead"
            within = f"(queried within {facts.ended - facts.began:.2f} s)"
            worse: Severity | None = "error" if skew >= _SKEW_FATAL else None
            seen = f"at least {skew:.2f} s {way} the job's first node {within}"
            yield Evidence(seen, f"on {node.host}: chronyc tracking; systemctl restart chronyd", node.host, worse)


@RULES.rule(
    "HD050",
    "Nodes have different versions",
    severity="error",
    why="The protocol between ranks changes with the version of the MPI library: ranks hang, or misread each other's "
    "messages.",
)
def different_versions(facts: Nodes) -> Iterator[Evidence]:
    """Compared with most nodes. Another kernel is an info, another stack an error."""
    stacks = {node.host: node.stack.manifest for node in facts.nodes if node.stack and node.stack.manifest}
    for host, digest, usual in _others(stacks):
        prefix = next((node.prefix for node in facts.nodes if node.host == host), None)
        seen = f"{prefix} contains another installation (manifest {digest[:12]}) than on other nodes ({usual[:12]})"
        yield Evidence(seen, "compare df and mount with other nodes", host)
    names = sorted({name for node in facts.nodes for name in node.versions})
    for name in names:
        told = {node.host: node.versions.get(name, "none") for node in facts.nodes if node.versions}
        for host, version, usual in _others(told):
            seen = f"{name} {version}, on other nodes {usual}"
            severity: Severity = "info" if name == "kernel" else "warning"
            yield Evidence(seen, "update the node, or exclude it (--exclude)", host, severity)


@RULES.rule(
    "HD051",
    "The stack is not there on a node",
    severity="error",
    why="Ranks cannot start there: the launcher prints only that a file was not found, or hangs.",
)
def invisible_stack(facts: Nodes) -> Iterator[Evidence]:
    """The prefix, its manifest or its Python is missing."""
    for node in facts.nodes:
        if node.stack is None:
            continue
        if not node.stack.seen:
            seen = f"{node.prefix} not found"
        elif not node.stack.python or node.told_by in ("system", "sh"):
            seen = f"{node.prefix}/bin/python does not start"
        elif not node.stack.manifest:
            seen = f"{node.prefix} has no manifest: incomplete installation"
        else:
            continue
        fix = "mount its file system, or install in a directory that all nodes see (--prefix)"
        yield Evidence(seen, fix, node.host)


@RULES.rule(
    "HD053",
    "A node does not answer",
    severity="error",
    why="Every job on this node hangs or fails.",
)
def silent_nodes(facts: Nodes) -> Iterator[Evidence]:
    """Nothing could be started on a host of the allocation."""
    for host in facts.silent:
        fix = f"scontrol show node {host} (State and Reason); run without it: --exclude={host}"
        yield Evidence(f"no response{f'; output: {facts.said}' if facts.said else ''}", fix, host)


@RULES.rule(
    "HD054",
    "Nodes are parts of one machine",
    severity="info",
    why="They are containers or namespaces that share cores and memory: they show what runs, but times and "
    "efficiencies do not represent a cluster.",
)
def one_machine(facts: Nodes) -> Iterator[Evidence]:
    """Several nodes have the same boot id (``/proc/sys/kernel/random/boot_id``)."""
    if nodes := facts.of_one_machine:
        yield Evidence(f"{_hosts(nodes)}: the same boot id", "nothing to do if intended (hidl cluster up)")


def _tmp(node: Node) -> Room | None:
    return node.tmp


def _shm(node: Node) -> Room | None:
    return node.shm


def _place(room: Room, node: Node) -> tuple[str | None, ...] | None:
    """What is equal where the directory is the same; None where it cannot be another node's."""
    if room.type in _NETWORKED:
        return room.type, room.source, room.path
    return ("machine", node.boot, room.identity) if node.boot and room.identity else None


def _others(told: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """(host, what it told, what most told) of the hosts that are in the minority."""
    usual = Counter(told.values()).most_common(1)
    return ((host, value, usual[0][0]) for host, value in sorted(told.items()) if value != usual[0][0])


def _hosts(nodes: list[Node] | tuple[Node, ...]) -> str:
    answers = Counter(node.host for node in nodes)
    names = [name if times == 1 else f"{name} ({times} times)" for name, times in answers.items()]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _short(host: str) -> str:
    return host.partition(".")[0]

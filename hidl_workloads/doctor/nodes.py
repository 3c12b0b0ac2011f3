"""Rules that compare the nodes of a job with each other and with the request."""

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
_SKEW_FATAL = 300.0  # limit of munge (--ttl in munged(8)) and Kerberos (clockskew in krb5.conf(5))
_NAMED = 8


@dataclass(frozen=True)
class Nodes:
    """The facts of all nodes of a job.

    Attributes:
        nodes: Facts of the nodes that responded.
        hosts: All hosts that were queried.
        began: Start of the query in seconds since the epoch, by the clock of the first node.
        ended: End of the query.
        outside: Host that is not part of the job, on which hidl runs.
        said: Error output of the query.
    """

    nodes: tuple[Node, ...]
    hosts: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    outside: Node | None = None
    said: str = ""

    @property
    def silent(self) -> tuple[str, ...]:
        """The hosts that did not respond."""
        responsive = {_short(node.host) for node in self.nodes}
        return tuple(host for host in self.hosts if _short(host) not in responsive)

    @property
    def of_one_machine(self) -> tuple[Node, ...]:
        """The nodes whose machine also runs another node or the outer host; a host that answers twice counts twice."""
        names = {node.host for node in self.nodes}
        outside = (self.outside,) if self.outside and self.outside.host not in names else ()
        boots = Counter(node.boot for node in (*self.nodes, *outside) if node.boot)
        return tuple(node for node in self.nodes if boots[node.boot] > 1)


RULES: Rules[Nodes] = Rules()


@RULES.rule(
    "HD042",
    "Nodes share a directory for temporary files",
    severity="warning",
    why="Names in /tmp and /dev/shm are only unique per node. Sockets and session directories of PMIx, Open MPI and "
    "Ray collide with those of other nodes.",
)
def shared_directories(facts: Nodes) -> Iterator[Evidence]:
    """Report a warning if nodes share a directory, on a network file system or because they are one machine."""
    for name, room_of in (("TMPDIR", _tmp), ("/dev/shm", _shm)):
        places: dict[tuple[str | None, ...], list[Node]] = {}
        for node in facts.nodes:
            room = room_of(node)
            if room is not None and (place := _place(room, node)) is not None:
                places.setdefault(place, []).append(node)
        for nodes in places.values():
            room = room_of(nodes[0])
            if len({node.host for node in nodes}) > 1 and room is not None:
                fix = "use a node-local directory: export TMPDIR=/tmp, or job_container/tmpfs in Slurm"
                seen = f"{room.path} ({room.type} {room.source}) is the same on {_hosts(nodes)}"
                yield Evidence(seen, fix if name == "TMPDIR" else "mount a tmpfs on /dev/shm of each node")


@RULES.rule(
    "HD049",
    "Clocks differ between nodes",
    severity="warning",
    why="Timestamps of files and log lines of several nodes are ordered wrongly, which affects caches and make. Above "
    "5 minutes, munge and Kerberos reject credentials, and Slurm fails.",
)
def clock_skew(facts: Nodes) -> Iterator[Evidence]:
    """Report a warning, or an error from 5 minutes, if a clock is outside the interval of the query."""
    if facts.began is None or facts.ended is None:
        return
    for node in facts.nodes:
        if node.time is None:
            continue
        skew = max(facts.began - node.time, node.time - facts.ended)
        if skew > _SKEW_SECONDS:
            direction = "behind" if node.time < facts.began else "ahead of"
            within = f"(queried within {facts.ended - facts.began:.2f} s)"
            severity: Severity | None = "error" if skew >= _SKEW_FATAL else None
            seen = f"at least {skew:.2f} s {direction} the job's first node {within}"
            yield Evidence(seen, f"on {node.host}: chronyc tracking; systemctl restart chronyd", node.host, severity)


@RULES.rule(
    "HD050",
    "Nodes have different versions",
    severity="error",
    why="The protocol between ranks depends on the version of the MPI library. Ranks hang or misinterpret messages of "
    "other ranks.",
)
def different_versions(facts: Nodes) -> Iterator[Evidence]:
    """Report nodes that differ from the majority: an error for the stack, an info for the kernel, else a warning."""
    stacks = {node.host: node.stack.manifest for node in facts.nodes if node.stack and node.stack.manifest}
    for host, digest, usual in _others(stacks):
        prefix = next((node.prefix for node in facts.nodes if node.host == host), None)
        seen = f"{prefix} differs from other nodes (manifest {digest[:12]} instead of {usual[:12]})"
        yield Evidence(seen, "compare the output of df and mount with that of other nodes", host)
    names = sorted({name for node in facts.nodes for name in node.versions})
    for name in names:
        versions = {node.host: node.versions.get(name, "none") for node in facts.nodes if node.versions}
        for host, version, usual in _others(versions):
            seen = f"{name} {version} instead of {usual} on other nodes"
            severity: Severity = "info" if name == "kernel" else "warning"
            yield Evidence(seen, "update the node, or exclude it (--exclude)", host, severity)


@RULES.rule(
    "HD051",
    "The stack is missing on a node",
    severity="error",
    why="Ranks cannot start there. The launcher hangs, or only prints that a file was not found.",
)
def invisible_stack(facts: Nodes) -> Iterator[Evidence]:
    """Report an error if the prefix, its manifest or its Python is missing."""
    for node in facts.nodes:
        if node.stack is None:
            continue
        if not node.stack.seen:
            seen = f"{node.prefix} not found"
        elif not node.stack.python or node.told_by in ("system", "sh"):
            seen = f"{node.prefix}/bin/python does not start"
        elif not node.stack.manifest:
            seen = f"{node.prefix} has no manifest, so the installation is incomplete"
        else:
            continue
        fix = "mount its file system, or install the stack in a directory that is available on all nodes (--prefix)"
        yield Evidence(seen, fix, node.host)


@RULES.rule(
    "HD053",
    "A node does not respond",
    severity="error",
    why="Every job on this node hangs or fails.",
)
def silent_nodes(facts: Nodes) -> Iterator[Evidence]:
    """Report an error if no process could be started on a host of the allocation."""
    for host in facts.silent:
        fix = f"scontrol show node {host} (see State and Reason), or exclude it: --exclude={host}"
        yield Evidence(f"no response{f'; output: {facts.said}' if facts.said else ''}", fix, host)


@RULES.rule(
    "HD054",
    "Nodes are parts of one machine",
    severity="info",
    why="They are containers or namespaces that share cores and memory. Programs can be tested on them, but times and "
    "efficiencies do not represent a cluster.",
)
def one_machine(facts: Nodes) -> Iterator[Evidence]:
    """Report an info if hosts have the same boot id (``/proc/sys/kernel/random/boot_id``)."""
    if nodes := facts.of_one_machine:
        yield Evidence(f"{_hosts(nodes)} have the same boot id", "nothing required if intended (hidl cluster up)")


def _tmp(node: Node) -> Room | None:
    return node.tmp


def _shm(node: Node) -> Room | None:
    return node.shm


def _place(room: Room, node: Node) -> tuple[str | None, ...] | None:
    """Return a key that is equal for the same directory on several nodes; None for node-local directories."""
    if room.type in _NETWORKED:
        return room.type, room.source, room.path
    return ("machine", node.boot, room.identity) if node.boot and room.identity else None


def _others(values: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (host, value, most frequent value) for hosts whose value is not the most frequent one."""
    usual = Counter(values.values()).most_common(1)
    return ((host, value, usual[0][0]) for host, value in sorted(values.items()) if value != usual[0][0])


def _hosts(nodes: list[Node] | tuple[Node, ...]) -> str:
    answers = Counter(node.host for node in nodes)
    names = [name if times == 1 else f"{name} ({times} times)" for name, times in answers.items()]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _short(host: str) -> str:
    return host.partition(".")[0]

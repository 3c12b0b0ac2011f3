"""Rules for a single node, inside or outside of jobs: free space, limits and memory.

MPI libraries allocate the memory that ranks of a node share in /dev/shm, a few MiB per rank, and die of SIGBUS if it is
full. Containers get 64 MiB by default (``docker run --shm-size``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hidl_workloads.doctor import node_probe
from hidl_workloads.doctor.finding import Evidence, Rules

MIB = 2**20
GIB = 2**30
UNLIMITED = -1

_TMP_NONE, _TMP_LITTLE = 16 * MIB, 1 * GIB
_SHM_NONE, _SHM_LITTLE = 4 * MIB, 64 * MIB
_FILES_LITTLE = 1000
_USUAL_MEMLOCK = 8 * MIB  # the default limit since Linux 5.16
_NOFILE_NONE, _NOFILE_LITTLE = 256, 1024
_MEMORY_SHARE = 0.9  # fraction of the request, because sites reserve memory for the system and may confuse GB with GiB


@dataclass(frozen=True)
class Room:
    """A directory and its file system, with sizes in bytes.

    Attributes:
        files_free: Number of files that can be created; None if the file system has no limit.
        type: Type of the mount.
        source: Source of the mount.
        identity: Unique identifier of the directory on its machine.
    """

    path: str
    total: int
    free: int
    files_free: int | None = None
    writable: bool = True
    type: str | None = None
    source: str | None = None
    identity: str | None = None


@dataclass(frozen=True)
class Stack:
    """The stack as seen by a node: its directory, an executable Python, and the SHA-256 of its manifest."""

    seen: bool
    python: bool
    manifest: str | None = None


@dataclass(frozen=True)
class Node:
    """Facts about a node, which are None if unknown. Sizes are in bytes, and limits are soft limits.

    Attributes:
        time: Seconds since the epoch.
        told_by: Origin of the facts: ``python`` for the current process, ``stack`` for the stack's Python, ``system``
            for the system's Python if the stack's does not start, and ``sh`` if there is no Python.
        boot: Boot id, which is equal for hosts that are namespaces of one machine.
        memory_limit: Memory limit of the control groups; None if unlimited.
        wanted_memory: Memory that the placement assumes.
        prefix: Prefix of the stack.
    """

    host: str
    time: float | None = None
    told_by: str = "python"
    boot: str | None = None
    tmp: Room | None = None
    shm: Room | None = None
    memlock: int | None = None
    nofile: int | None = None
    memory: int | None = None
    memory_limit: int | None = None
    wanted_memory: int | None = None
    rdma: bool | None = None
    prefix: str | None = None
    stack: Stack | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], *, wanted_memory: int | None = None) -> Node:
        """Parse the output of ``node_probe``.

        Raises:
            TypeError: If the facts have other fields.
        """
        rooms = {name: Room(**facts[name]) for name in ("tmp", "shm") if facts.get(name)}
        stack = {"stack": Stack(**facts["stack"])} if facts.get("stack") else {}
        known = {"wanted_memory": wanted_memory, **facts, "tmp": None, "shm": None, "stack": None}
        return cls(**{**known, **rooms, **stack})


def probe(prefix: str | None = None, *, wanted_memory: int | None = None) -> Node:
    """Collect the facts of this node, which takes about a millisecond.

    Args:
        prefix: Prefix of a stack that the node should see.
        wanted_memory: Memory that the placement assumes, in bytes.
    """
    return Node.from_facts(node_probe.facts(prefix), wanted_memory=wanted_memory)


RULES: Rules[Node] = Rules()


@RULES.rule(
    "HD040",
    "No space for temporary files",
    severity="warning",
    why="MPI libraries, compilers and frameworks store sockets, caches and spilled data there, and fail with unclear "
    "errors if they cannot.",
)
def little_tmp(node: Node) -> Iterator[Evidence]:
    """Report a warning if the directory for temporary files is nearly full, or an error if it is full or read-only."""
    if node.tmp is None:
        return
    path, is_full = node.tmp.path, node.tmp.free < _TMP_NONE or node.tmp.files_free == 0
    if not node.tmp.writable:
        yield Evidence(f"{path} is not writable", f"chmod 1777 {path}, or export TMPDIR=...", node.host, "error")
    elif is_full or node.tmp.free < _TMP_LITTLE:
        seen = f"{_size(node.tmp.free)} of {_size(node.tmp.total)} free in {path}{_no_files(node.tmp)}"
        fix = f"remove old files (du -xhd1 {path}), or export TMPDIR=<a directory with free space>"
        yield Evidence(seen, fix, node.host, "error" if is_full else None)
    elif (node.tmp.files_free or _FILES_LITTLE) < _FILES_LITTLE:
        yield Evidence(f"{path} has space for {node.tmp.files_free} more files", f"du --inodes -xd1 {path}", node.host)


@RULES.rule(
    "HD041",
    "/dev/shm is full or small",
    severity="warning",
    why='Ranks of one node communicate through /dev/shm. If it is full, a rank dies of SIGBUS ("Bus error") in '
    "MPI_Init, NCCL or a data loader, without any other message.",
)
def little_shared_memory(node: Node) -> Iterator[Evidence]:
    """Report a warning if shared memory is small or nearly full, or an error if it is full or not writable."""
    if node.shm is None:
        return
    path, seen = node.shm.path, f"{_size(node.shm.free)} of {_size(node.shm.total)} free in {node.shm.path}"
    if not node.shm.writable:
        yield Evidence(f"{path} is not writable", f"chmod 1777 {path}", node.host, "error")
    elif node.shm.free < _SHM_NONE or node.shm.files_free == 0:
        fix = f"remove files of ended jobs: ls -l {path}; enlarge it: mount -o remount,size=50% {path}"
        yield Evidence(seen + _no_files(node.shm), fix, node.host, "error")
    elif node.shm.total <= _SHM_LITTLE:
        fix = f"mount -o remount,size=50% {path}; in a container: --shm-size=8g or --ipc=host"
        yield Evidence(seen, fix, node.host)
    elif node.shm.free < _SHM_LITTLE:
        yield Evidence(seen, f"remove files of ended jobs: ls -l {path}", node.host)


@RULES.rule(
    "HD043",
    "Locked memory is limited",
    severity="warning",
    why="InfiniBand and RoCE require locked memory (memlock). With a small limit, MPI_Init fails or falls back to TCP. "
    "The limits of Slurm's daemons may differ from those of a login shell.",
)
def limited_memlock(node: Node) -> Iterator[Evidence]:
    """Report a low ``ulimit -l`` of the ranks: a warning with RDMA devices, else an info if below Linux's default."""
    if node.memlock is None or node.memlock == UNLIMITED:
        return
    seen = f"ulimit -l is {node.memlock // 1024} KiB"
    fix = "LimitMEMLOCK=infinity for slurmd (systemctl edit slurmd) and `* - memlock unlimited` in limits.conf"
    if node.rdma:
        yield Evidence(f"{seen} on a node with an RDMA device", fix, node.host, "error" if node.memlock < MIB else None)
    elif node.memlock < _USUAL_MEMLOCK:
        yield Evidence(f"{seen}, but the node has no RDMA device that requires more", fix, node.host, "info")


@RULES.rule(
    "HD044",
    "The limit of open files is low",
    severity="warning",
    why="Launchers open sockets and pipes for each rank, and Dask and Horovod open one socket per peer. They fail with "
    '"Too many open files".',
)
def limited_nofile(node: Node) -> Iterator[Evidence]:
    """Report a warning if ``ulimit -n`` of the ranks is below 1024, or an error below 256."""
    if node.nofile is not None and node.nofile != UNLIMITED and node.nofile < _NOFILE_LITTLE:
        fix = "ulimit -n 4096 before the launch; LimitNOFILE=131072 for slurmd if the job is limited"
        worse = node.nofile < _NOFILE_NONE
        yield Evidence(f"ulimit -n is {node.nofile}", fix, node.host, "error" if worse else None)


@RULES.rule(
    "HD048",
    "The job has less memory than its node",
    severity="warning",
    why="hidl places ranks based on the memory of the site's nodes. If the control group is smaller, the job runs out "
    "of memory although the placement fits the node.",
)
def limited_memory(node: Node) -> Iterator[Evidence]:
    """Report a warning if the memory limit of the control group is below that of the placement."""
    if node.memory_limit is None or node.wanted_memory is None:
        return
    if node.memory_limit < _MEMORY_SHARE * node.wanted_memory:
        seen = (
            f"the control group allows {_size(node.memory_limit)}, the placement requires {_size(node.wanted_memory)}"
        )
        fix = "request it with `policies: {memory: mem}` in the site file, or correct `memory_gib` of the node type"
        yield Evidence(seen, fix, node.host)


def _no_files(room: Room) -> str:
    return ", but no more files can be created" if room.files_free == 0 else ""


def _size(size: int) -> str:
    """Format a size in bytes."""
    if size >= GIB:
        return f"{size / GIB:.1f} GiB"
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size // 1024} KiB"

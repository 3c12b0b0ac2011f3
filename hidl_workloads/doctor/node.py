"""One node: room for files, limits, memory. What holds of a login node as well as inside a job.

Thresholds: MPI libraries lay the memory that ranks of one node share into /dev/shm, some MiB for each rank, and die of
SIGBUS where it cannot be had; containers get 64 MiB of it unless they are told otherwise (docker run, ``--shm-size``).
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
_USUAL_MEMLOCK = 8 * MIB  # of Linux since 5.16
_NOFILE_NONE, _NOFILE_LITTLE = 256, 1024
_MEMORY_SHARE = 0.9  # of what is asked for: sites keep some for the system, and count in GB as well as in GiB


@dataclass(frozen=True)
class Room:
    """A directory and the file system that it lies on. Sizes in bytes; ``files_free``: None where it sets no limit.

    ``identity`` tells it from all others of one machine; ``type`` and ``source`` are those of the mount.
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
    """What a node sees of the stack: its directory, an interpreter that can be started, its manifest's SHA-256."""

    seen: bool
    python: bool
    manifest: str | None = None


@dataclass(frozen=True)
class Node:
    """Facts of one node; None: unknown. Sizes in bytes, ``time`` in seconds since the epoch, limits are the soft ones.

    ``told_by``: ``python``, the process that asks; or the one that was started on the node to tell: ``stack`` (the
    stack's Python), ``system`` (the system's, as the stack's does not start), ``sh`` (there is none). ``boot`` is the
    same for hosts that are namespaces of one machine. ``memory_limit``: what the control groups leave (None: no
    limit). ``wanted_memory``: what the placement counts on. ``prefix``: the stack's.
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
        """Of what ``node_probe`` told; ``TypeError`` where that is something else."""
        rooms = {name: Room(**facts[name]) for name in ("tmp", "shm") if facts.get(name)}
        stack = {"stack": Stack(**facts["stack"])} if facts.get("stack") else {}
        known = {"wanted_memory": wanted_memory, **facts, "tmp": None, "shm": None, "stack": None}
        return cls(**{**known, **rooms, **stack})


def probe(prefix: str | None = None, *, wanted_memory: int | None = None) -> Node:
    """Facts of this very process' node, in a millisecond; ``prefix``: a stack that it should see."""
    return Node.from_facts(node_probe.facts(prefix), wanted_memory=wanted_memory)


RULES: Rules[Node] = Rules()


@RULES.rule(
    "HD040",
    "No room for temporary files",
    severity="warning",
    why="MPI libraries, compilers and frameworks keep sockets, caches and spilled data there; they fail with "
    "unclear errors.",
)
def little_tmp(node: Node) -> Iterator[Evidence]:
    """The directory for temporary files is full, nearly full, or not writable."""
    if node.tmp is None:
        return
    path, none = node.tmp.path, node.tmp.free < _TMP_NONE or node.tmp.files_free == 0
    if not node.tmp.writable:
        yield Evidence(f"{path} is not writable", f"chmod 1777 {path}, or export TMPDIR=...", node.host, "error")
    elif none or node.tmp.free < _TMP_LITTLE:
        seen = f"{_size(node.tmp.free)} of {_size(node.tmp.total)} free in {path}{_no_files(node.tmp)}"
        fix = f"remove old files (du -xhd1 {path}), or export TMPDIR=<a directory with space>"
        yield Evidence(seen, fix, node.host, "error" if none else None)
    elif (node.tmp.files_free or _FILES_LITTLE) < _FILES_LITTLE:
        yield Evidence(f"{path} has space for {node.tmp.files_free} more files", f"du --inodes -xd1 {path}", node.host)


@RULES.rule(
    "HD041",
    "/dev/shm is full or small",
    severity="warning",
    why='Ranks of one node communicate through /dev/shm. If it is full, a rank dies of SIGBUS ("Bus '
    'error") in MPI_Init, NCCL, or a data loader, and nothing says why.',
)
def little_shared_memory(node: Node) -> Iterator[Evidence]:
    """Shared memory is full, or small."""
    if node.shm is None:
        return
    path, of = node.shm.path, f"{_size(node.shm.free)} of {_size(node.shm.total)} free in {node.shm.path}"
    if not node.shm.writable:
        yield Evidence(f"{path} is not writable", f"chmod 1777 {path}", node.host, "error")
    elif node.shm.free < _SHM_NONE or node.shm.files_free == 0:
        fix = f"remove files of ended jobs: ls -l {path}; enlarge it: mount -o remount,size=50% {path}"
        yield Evidence(of + _no_files(node.shm), fix, node.host, "error")
    elif node.shm.total <= _SHM_LITTLE:
        fix = f"mount -o remount,size=50% {path}; in a container: --shm-size=8g, or --ipc=host"
        yield Evidence(of, fix, node.host)
    elif node.shm.free < _SHM_LITTLE:
        yield Evidence(of, f"remove files of ended jobs: ls -l {path}", node.host)


@RULES.rule(
    "HD043",
    "Locked memory is limited",
    severity="warning",
    why="InfiniBand and RoCE require locked memory (memlock): with a small limit MPI_Init fails, or falls back to TCP. "
    "The limits of a login shell are not those of Slurm's daemons.",
)
def limited_memlock(node: Node) -> Iterator[Evidence]:
    """``ulimit -l`` of the ranks; without RDMA, only if it is below the default of Linux."""
    if node.memlock is None or node.memlock == UNLIMITED:
        return
    seen = f"ulimit -l is {node.memlock // 1024} KiB"
    fix = "LimitMEMLOCK=infinity for slurmd (systemctl edit slurmd) and `* - memlock unlimited` in limits.conf"
    if node.rdma:
        yield Evidence(f"{seen}, with an RDMA device", fix, node.host, "error" if node.memlock < MIB else None)
    elif node.memlock < _USUAL_MEMLOCK:
        yield Evidence(f"{seen}; no RDMA device requires more", fix, node.host, "info")


@RULES.rule(
    "HD044",
    "The limit of open files is low",
    severity="warning",
    why='Launchers keep sockets and pipes for each rank, Dask and Horovod one for each peer: "Too many open files".',
)
def limited_nofile(node: Node) -> Iterator[Evidence]:
    """``ulimit -n`` of the ranks."""
    if node.nofile is not None and node.nofile != UNLIMITED and node.nofile < _NOFILE_LITTLE:
        fix = "ulimit -n 4096 before the launch; LimitNOFILE=131072 for slurmd if the job is limited"
        worse = node.nofile < _NOFILE_NONE
        yield Evidence(f"ulimit -n is {node.nofile}", fix, node.host, "error" if worse else None)


@RULES.rule(
    "HD048",
    "The job has less memory than its node",
    severity="warning",
    why="hidl places ranks by the memory of the site's nodes. A smaller control group kills the job (out of memory), "
    "although the placement fits the node.",
)
def limited_memory(node: Node) -> Iterator[Evidence]:
    """The control group's memory limit is below that of the placement."""
    if node.memory_limit is None or node.wanted_memory is None:
        return
    if node.memory_limit < _MEMORY_SHARE * node.wanted_memory:
        seen = (
            f"the control group allows {_size(node.memory_limit)}, the placement requires {_size(node.wanted_memory)}"
        )
        fix = "`policies: {memory: mem}` in the site's file asks for it; or correct `memory_gib` of its node type"
        yield Evidence(seen, fix, node.host)


def _no_files(room: Room) -> str:
    return ", and no file more fits" if room.files_free == 0 else ""


def _size(size: int) -> str:
    """Format bytes."""
    if size >= GIB:
        return f"{size / GIB:.1f} GiB"
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size // 1024} KiB"

"""What probes find: plain facts, each None where it is unknown. Who found them stands beside them, for people."""

from __future__ import annotations

from dataclasses import dataclass

from hidl_cli.mpi import Family


@dataclass(frozen=True)
class Hardware:
    """What makes nodes of one kind: cores that jobs may use, memory in MiB, the GPUs' models and their number.

    ``processors``: what the scheduler counts where it may be cores or hardware threads.
    """

    sockets: int | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    memory_mib: int | None = None
    gpus: int | None = None
    gpu_model: str | None = None
    processors: int | None = None


@dataclass(frozen=True)
class Processor:
    """A host's processors, as a program on it tells them; ``processors``: hardware threads, all together."""

    cpu: str | None = None
    arch: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    processors: int | None = None


@dataclass(frozen=True)
class ProbedNode:
    """A compute node as its scheduler knows it; ``arch`` is known of nodes only that have been up."""

    name: str
    hardware: Hardware
    features: frozenset[str] = frozenset()
    queues: tuple[str, ...] = ()
    arch: str | None = None


@dataclass(frozen=True)
class Queue:
    """A partition or queue. ``left_out``: why it is of no use to hidl; ``remarks``: what people should know of it.

    ``is_listed``: False where only nodes name it, so that there may be others, too.
    """

    name: str
    is_default: bool = False
    min_nodes: int = 1
    max_nodes: int | None = None
    max_wall: str | None = None
    restricted: bool = False
    left_out: str | None = None
    remarks: tuple[str, ...] = ()
    is_listed: bool = True


@dataclass(frozen=True)
class Policy:
    """A value for one of a site's ``policies``, and where it comes from."""

    key: str
    value: str | bool
    why: str


@dataclass(frozen=True)
class Batch:
    """A scheduler: its cluster's name, nodes, queues and policies.

    ``srun_mpi``: what its ``srun --mpi=`` takes. ``sources``: the commands that told all this; none where the
    scheduler's programs are here, but gave no answer.
    """

    scheduler: str
    version: str | None = None
    cluster: str | None = None
    nodes: tuple[ProbedNode, ...] = ()
    queues: tuple[Queue, ...] = ()
    policies: tuple[Policy, ...] = ()
    srun_mpi: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    """An MPI library: on the PATH (``prefix``), or offered as a module."""

    name: str
    family: Family
    version: str | None
    source: str
    prefix: str | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fact:
    """One value and where it comes from."""

    value: str
    source: str


@dataclass(frozen=True)
class Installed:
    """Software of a machine that is no MPI library, by the name of Spack's package."""

    package: str
    version: str
    prefix: str
    source: str

"""What probes find: plain facts, each None where it is unknown. Who found them stands beside them, for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ClusterShell.NodeSet import NodeSet, NodeSetException

from hidl_cli.mpi import Family

_WORD = re.compile(r"\S+")
_MOST_COLUMNS = 100


def heading(lines: Sequence[str], *titles: str) -> int | None:
    """The number of the line that has these titles, from 0; None where there is none."""
    return next((at for at, line in enumerate(lines) if set(titles) <= set(line.split())), None)


def rows(text: str, *titles: str) -> Iterator[dict[str, str] | None]:
    """Each line below the one with these titles, by the titles of its columns; empty cells are left out.

    None for a line that does not fit: of more words than titles, or of words below no title. Lines that are blank or
    drawn (``-----``) are passed over.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is not None:
        for number in range(at + 1, len(lines)):
            if is_row(lines[number]):
                yield row(lines[at], lines[number])


def is_row(line: str) -> bool:
    """Whether a line holds more than space and drawn lines."""
    return bool(line.strip(" -=+|\t"))


def row(head: str, line: str) -> dict[str, str] | None:
    """One line by the titles in ``head``; None where it does not fit."""
    columns, words = list(_WORD.finditer(head)), list(_WORD.finditer(line))
    if len(columns) > _MOST_COLUMNS:
        return None
    if len(words) == len(columns):
        return {column[0]: word[0] for column, word in zip(columns, words, strict=True)}
    if len(words) > len(columns):
        return None
    found: dict[str, str] = {}
    for word in words:
        below = [column for column in columns if word.start() < column.end() and column.start() < word.end()]
        if not below:
            return None
        best = max(below, key=lambda one: min(word.end(), one.end()) - max(word.start(), one.start()))
        if best[0] in found:
            return None
        found[best[0]] = word[0]
    return found


# Lists of hosts as schedulers write them: ``c[101-191],gpu[01-08]``.


MOST_NODES = 100_000
_WORD_OF_NODELIST = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_PART = re.compile(rf"(?:[\w.%-]|\[{_RANGE}(?:,{_RANGE})*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")


def listed(text: str) -> list[str]:
    """The hosts of a list, each once; none where it is no list, or one of more than ``MOST_NODES``."""
    try:
        return list(dict.fromkeys(hosts_of(text)))
    except (ValueError, NodeSetException):
        return []


def hosts_of(text: str) -> list[str]:
    """Expand a list, and keep names that stand there several times (brokers on one host).

    Raises ``ValueError`` or ``NodeSetException`` where it is no list, or one of more than ``MOST_NODES``.
    """
    if not text or text.startswith("("):  # (null), (unknown)
        return []
    parts = _WORD_OF_NODELIST.findall(text)
    is_list = ",".join(parts) == text and all(_PART.fullmatch(part) for part in parts)
    if not is_list or sum(map(_size, parts)) > MOST_NODES:
        raise ValueError(f"no list of hosts: {text[:60]}")
    return [name for part in parts for name in NodeSet(part)]


def _size(part: str) -> int:
    """How many hosts it may be, before any is made."""
    return prod(sum(map(_length, ranges.split(","))) for ranges in _RANGES.findall(part))


def _length(numbers: str) -> int:
    low, _, high = numbers.partition("-")
    return max(1, int(high or low) - int(low) + 1)


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

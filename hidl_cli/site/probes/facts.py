"""Facts found by probes, which are None if unknown, and parsers for tables and host lists."""

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
    """Return the index of the first line that contains these titles, or None."""
    return next((at for at, line in enumerate(lines) if set(titles) <= set(line.split())), None)


def rows(text: str, *titles: str) -> Iterator[dict[str, str] | None]:
    """Yield each line below these titles as a mapping from title to cell, without empty cells.

    Yields None for a line that does not match the titles. Blank lines and rulers (``-----``) are skipped.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is not None:
        for number in range(at + 1, len(lines)):
            if is_row(lines[number]):
                yield row(lines[at], lines[number])


def is_row(line: str) -> bool:
    """Return whether a line contains anything other than whitespace and rulers (``-----``)."""
    return bool(line.strip(" -=+|\t"))


def row(head: str, line: str) -> dict[str, str] | None:
    """Split a line into cells by the titles in ``head``. Returns None if the line does not match the titles."""
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


# Host lists in scheduler syntax: ``c[101-191],gpu[01-08]``.


MOST_NODES = 100_000
_WORD_OF_NODELIST = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_PART = re.compile(rf"(?:[\w.%-]|\[{_RANGE}(?:,{_RANGE})*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")


def listed(text: str) -> list[str]:
    """Return the hosts in a host list, without duplicates.

    The result is empty if the list is invalid or longer than ``MOST_NODES``.
    """
    try:
        return list(dict.fromkeys(hosts_of(text)))
    except (ValueError, NodeSetException):
        return []


def hosts_of(text: str) -> list[str]:
    """Expand a host list, keeping names that occur several times (because of several brokers on one host).

    Raises ``ValueError`` or ``NodeSetException`` if the list is invalid or longer than ``MOST_NODES``.
    """
    if not text or text.startswith("("):  # (null), (unknown)
        return []
    parts = _WORD_OF_NODELIST.findall(text)
    is_list = ",".join(parts) == text and all(_PART.fullmatch(part) for part in parts)
    if not is_list or sum(map(_size, parts)) > MOST_NODES:
        raise ValueError(f"invalid host list: {text[:60]}")
    return [name for part in parts for name in NodeSet(part)]


def _size(part: str) -> int:
    """Compute the number of hosts in a list without expanding it."""
    return prod(sum(map(_length, ranges.split(","))) for ranges in _RANGES.findall(part))


def _length(numbers: str) -> int:
    low, _, high = numbers.partition("-")
    return max(1, int(high or low) - int(low) + 1)


@dataclass(frozen=True)
class Hardware:
    """A node's hardware.

    Attributes:
        cores: Cores available to jobs.
        memory_mib: Memory in MiB.
        gpu_model: GPU models.
        processors: The scheduler's number of processors, which may be cores or hardware threads.
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
    """A host's processors, as reported by a program on that host; ``processors`` counts all hardware threads."""

    cpu: str | None = None
    arch: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    processors: int | None = None


@dataclass(frozen=True)
class ProbedNode:
    """A compute node, as described by the scheduler; ``arch`` is only known if the node has been up."""

    name: str
    hardware: Hardware
    features: frozenset[str] = frozenset()
    queues: tuple[str, ...] = ()
    arch: str | None = None


@dataclass(frozen=True)
class Queue:
    """A partition or queue.

    Attributes:
        left_out: Reason why hidl cannot use it.
        remarks: Notes for the user.
        is_listed: False if the queue is only known from its nodes, in which case other queues may exist.
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
    """A value for one of a site's ``policies``, and the source of the value."""

    key: str
    value: str | bool
    why: str


@dataclass(frozen=True)
class SchedulerFacts:
    """A scheduler's version, cluster name, nodes, queues and policies.

    Attributes:
        srun_mpi: Values that ``srun --mpi=`` accepts.
        sources: Commands that provided the facts; empty if the scheduler's programs exist but did not respond.
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
class ProbedLibrary:
    """An MPI library on the PATH (with ``prefix``) or in a module."""

    name: str
    family: Family
    version: str | None
    source: str
    prefix: str | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A value and its source."""

    value: str
    source: str


@dataclass(frozen=True)
class InstalledPackage:
    """Installed software other than an MPI library, identified by its Spack package name."""

    package: str
    version: str
    prefix: str
    source: str

"""Facts in the directory of the examining job: of nodes, launches, and ssh between nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli.doctor.nodes.plan import Attempt, Examination
from hidl_workloads.doctor.node import Node
from hidl_workloads.doctor.nodes import Nodes
from hidl_workloads.doctor.ranks import Rank

_SAID = 2000
TIMED_OUT = (124, 137)
"""Exit statuses of timeout(1): the command was ended by SIGTERM or SIGKILL."""


@dataclass(frozen=True)
class Tried:
    """One launch: its exit status (None: not started), its output, and the facts of its ranks.

    ``began``: ranks that did not return from MPI_Init.
    """

    attempt: Attempt
    status: int | None
    said: str = ""
    ranks: tuple[Rank, ...] = ()
    began: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """One connection from the job's first node, ``source``: exit status and output of ssh."""

    source: str
    target: str
    status: int
    said: str = ""


@dataclass(frozen=True)
class JobFacts:
    """All facts of the job."""

    nodes: Nodes
    tried: tuple[Tried, ...] = ()
    ssh: tuple[Ssh, ...] = ()


def read_facts(directory: Path, asked: Examination, *, outside: Node | None) -> JobFacts:
    """Read the facts that the job wrote to ``directory``; ``outside``: the host that hidl runs on."""
    hosts = tuple(_text(directory / "hosts").split())[: asked.nodes]
    memory = asked.plan.allocation.memory_gib
    wanted = int(memory * 2**30) if memory else None
    times = _json(_text(directory / "asked.json")) or {}
    told = _nodes(_text(directory / "nodes.jsonl"), wanted)
    nodes = Nodes(
        tuple(sorted(told, key=lambda node: hosts.index(node.host) if node.host in hosts else len(hosts))),
        hosts,
        times.get("began"),
        times.get("ended"),
        outside,
        " ".join(_text(directory / "nodes.err").split())[:_SAID],
    )
    tried = (_tried(directory / "steps" / str(number), each) for number, each in enumerate(asked.attempts, start=1))
    return JobFacts(nodes, tuple(tried), tuple(_ssh(directory / "ssh", hosts)))


def _nodes(lines: str, wanted: int | None) -> Iterator[Node]:
    """The lines that are facts of a node; shell profiles may print others."""
    for line in lines.splitlines():
        document = _json(line)
        if document is not None:
            with suppress(TypeError):
                yield Node.from_facts(document, wanted_memory=wanted)


def _tried(place: Path, attempt: Attempt) -> Tried:
    told = [_rank(file) for file in sorted((place / "ranks").glob("*.json"))]
    ranks = [rank for rank in told if rank is not None]
    status = _text(place / "status").strip()
    return Tried(
        attempt,
        int(status) if status.isdecimal() else None,
        (_text(place / "stderr.log") + _text(place / "stdout.log"))[-_SAID:].strip(),
        tuple(sorted((rank for rank in ranks if rank.size), key=lambda rank: (rank.rank, rank.host))),
        tuple(rank for rank in ranks if not rank.size),
    )


def _rank(file: Path) -> Rank | None:
    document = _json(_text(file))
    if document is not None:
        with suppress(TypeError, KeyError, IndexError):
            return Rank.from_json(document)
    return None


def _ssh(place: Path, hosts: tuple[str, ...]) -> Iterator[Ssh]:
    for host in hosts[1:]:
        status = _text(place / f"{host}.status").strip()
        if status.isdecimal():
            yield Ssh(hosts[0], host, int(status), _text(place / f"{host}.said").strip()[-_SAID:])


def _json(text: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        document = json.loads(text)
        return document if isinstance(document, dict) else None
    return None


def _text(file: Path) -> str:
    """The text of a file; empty if missing."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

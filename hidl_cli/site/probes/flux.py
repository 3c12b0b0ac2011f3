"""Flux, as ``flux resource`` and ``flux queue list`` describe the instance that this host belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ClusterShell.NodeSet import NodeSet, NodeSetException

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.site.probes.facts import Batch, Hardware, ProbedNode, Queue
from hidl_cli.site.probes.host import Host

_SECONDS = 30.0
_VERSION = re.compile(r"^libflux-core:\s+(\S+)", re.MULTILINE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_NODES = 100_000
_YES = "✔"


def probe(host: Host) -> Batch | None:
    """Describe the Flux instance of this host; None if there is no ``flux``. Memory and sockets stay unknown."""
    traits = SYSTEMS["flux"]
    if host.which(traits.shows) is None:
        return None
    table = list(_rows(host.ask("flux", "resource", "list", seconds=_SECONDS)))
    if not table:
        return Batch("flux")
    queues = tuple(_queues(host.ask("flux", "queue", "list", seconds=_SECONDS)))
    version = _VERSION.search(host.ask("flux", "version", seconds=_SECONDS) or "")
    name = re.search(traits.cluster_name, host.ask(*traits.cluster_command, seconds=_SECONDS) or "", re.MULTILINE)
    exact = _from_resource_set(host.ask("flux", "resource", "R", seconds=_SECONDS))
    remarks = [] if queues else ["no queues are configured: jobs name none"]
    return Batch(
        "flux",
        version=version[1] if version else None,
        cluster=name[1] if name else None,
        nodes=tuple(_nodes(table, exact, [queue.name for queue in queues])),
        queues=queues,
        sources=("flux resource list", "flux resource R", "flux queue list"),
        remarks=(*remarks, "memory of nodes is unknown: Flux does not schedule it"),
    )


def _rows(text: str | None) -> Iterator[dict[str, str]]:
    """Yield the lines of a table by the titles of its columns; trailing columns may be empty."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    titles = lines[0].split() if lines else []
    if "NODELIST" not in titles and "QUEUE" not in titles:
        return
    for line in lines[1:]:
        yield dict(zip(titles, line.split(), strict=False))


def _nodes(
    table: Iterable[Mapping[str, str]], exact: Mapping[str, tuple[Hardware, frozenset[str]]], queues: Sequence[str]
) -> Iterator[ProbedNode]:
    """Yield the nodes; without a resource set, a row's cores and GPUs are divided among its nodes."""
    members: dict[str, list[str]] = {}
    shares: dict[str, Hardware] = {}
    for row in table:
        names = _names(row.get("NODELIST", ""))
        listed = [word for word in row["QUEUE"].split(",") if word in queues] if "QUEUE" in row else list(queues)
        for name in names:
            members.setdefault(name, []).extend(one for one in listed if one not in members.get(name, ()))
            shares[name] = Hardware(
                cores=_share(row.get("NCORES"), names) or None, gpus=_share(row.get("NGPUS"), names)
            )
    for name, its_queues in members.items():
        hardware, properties = exact.get(name, (shares[name], frozenset()))
        yield ProbedNode(name, hardware, properties - {*queues}, tuple(its_queues))


def _share(total: str | None, names: Sequence[str]) -> int | None:
    """Return what each node has if it can be all the same, else None."""
    count = len(names)
    return int(total) // count if total and total.isdecimal() and int(total) % count == 0 else None


def _from_resource_set(text: str | None) -> dict[str, tuple[Hardware, frozenset[str]]]:
    """Read the cores, GPUs and properties of each node from a resource set (RFC 20); empty if there is none."""
    try:
        execution = json.loads(text or "")["execution"]
        names = [name for part in execution["nodelist"] for name in _listed(part)]
        properties: dict[int, set[str]] = {}
        for word, ranks in execution.get("properties", {}).items():
            for rank in _numbers(ranks):
                properties.setdefault(rank, set()).add(str(word))
        found = {}
        for part in execution["R_lite"]:
            children: Mapping[str, Any] = part["children"]
            cores, gpus = len(_numbers(children.get("core", ""))), len(_numbers(children.get("gpu", "")))
            for rank in _numbers(part["rank"]):
                found[names[rank]] = (Hardware(cores=cores or None, gpus=gpus), frozenset(properties.get(rank, ())))
    except (ValueError, LookupError, TypeError, AttributeError, NodeSetException):
        return {}
    return found


def _queues(text: str | None) -> Iterator[Queue]:
    for row in _rows(text):
        name = row["QUEUE"].removesuffix("*")
        fewest, most = _range(row.get("NNODES", ""))
        yield Queue(
            name,
            is_default=row["QUEUE"].endswith("*"),
            min_nodes=max(1, fewest),
            max_nodes=most,
            max_wall=_wall(row.get("TLIMIT", "")),
            left_out=None if row.get("EN", _YES) == _YES else "it is disabled",
            remarks=() if row.get("ST", _YES) == _YES else ("not started",),
        )


def _range(text: str) -> tuple[int, int | None]:
    """Read ``0-4``, ``1-inf``: no limit is None."""
    low, _, high = text.partition("-")
    return int(low) if low.isdecimal() else 0, int(high) if high.isdecimal() and int(high) else None


def _wall(text: str) -> str | None:
    """Read a Flux Standard Duration (RFC 23), such as ``1.5h``; None for ``inf``."""
    found = _DURATION.fullmatch(text)
    if found is None or len(found[1]) > 9:
        return None
    seconds = int(float(found[1]) * _UNITS[found[2]])
    days, hours = divmod(seconds // 3600, 24)
    clock = f"{hours:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def _names(text: str) -> list[str]:
    try:
        return list(dict.fromkeys(_listed(text)))
    except NodeSetException:
        return []


def _listed(text: str) -> list[str]:
    """Expand a hostlist, and keep names that stand there several times (brokers on one host)."""
    parts = re.split(r",(?![^\[]*\])", text) if text else []
    if any(len(NodeSet(part)) > _MOST_NODES for part in parts):
        return []
    return [name for part in parts for name in NodeSet(part)]


def _numbers(text: str) -> list[int]:
    """Expand an idset such as ``0-3,7``."""
    found: list[int] = []
    for word in filter(None, str(text).split(",")):
        low, _, high = word.partition("-")
        if int(high or low) - int(low) > _MOST_NODES:
            raise ValueError(text)
        found += range(int(low), int(high or low) + 1)
    return found

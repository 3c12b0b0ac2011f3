"""Probe this host's Flux instance with ``flux resource`` and ``flux queue list``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ClusterShell.NodeSet import NodeSetException

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.site.probes.facts import MOST_NODES, Hardware, ProbedNode, Queue, SchedulerFacts, hosts_of, listed, rows
from hidl_cli.site.probes.host import Host

_SECONDS = 30.0
RESOURCES = ("flux", "resource", "list")
RESOURCE_SET = ("flux", "resource", "R")
QUEUES = ("flux", "queue", "list")
VERSION = ("flux", "version")
_LOGIN = re.compile(r"(?:login|head|front-?end|mgmt|admin)(?![a-z])", re.IGNORECASE)
_VERSION = re.compile(r"^libflux-core:\s+(\S+)", re.MULTILINE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_YES = "✔"


def probe(host: Host) -> SchedulerFacts | None:
    """Probe this host's Flux instance. Returns None if there is no ``flux``. Memory and sockets remain unknown."""
    traits = SYSTEMS["flux"]
    if host.which(traits.shows) is None:
        return None
    resources = host.ask(*RESOURCES, seconds=_SECONDS)
    if not (resources and _table(resources)):
        return SchedulerFacts("flux")
    return describe(
        resources=resources,
        queues=host.ask(*QUEUES, seconds=_SECONDS),
        version=host.ask(*VERSION, seconds=_SECONDS),
        hosts=host.ask(*traits.cluster_command, seconds=_SECONDS),
        resource_set=host.ask(*RESOURCE_SET, seconds=_SECONDS),
    )


def describe(
    *,
    resources: str | None = None,
    queues: str | None = None,
    version: str | None = None,
    hosts: str | None = None,
    resource_set: str | None = None,
) -> SchedulerFacts:
    """Describe a Flux instance, given its commands' output.

    Pass None for a command that was not run or printed nothing.
    """
    table = _table(resources or "")
    found = tuple(_queues(queues or ""))
    number = _VERSION.search(version or "")
    name = re.search(SYSTEMS["flux"].cluster_name, hosts or "", re.MULTILINE)
    nodes = tuple(_nodes(table, _from_resource_set(resource_set), [queue.name for queue in found]))
    remarks = ["no queues are configured, so jobs do not name one"] if queues is not None and not found else []
    logins = [node.name for node in nodes if _LOGIN.match(node.name)]
    if logins:
        remarks.append(f"{', '.join(logins[:5])}: available to jobs, despite being named like a login node")
    if resources:
        remarks.append("memory of nodes is unknown: Flux does not schedule it")
    return SchedulerFacts(
        "flux",
        version=number[1] if number else None,
        cluster=name[1] if name else None,
        nodes=nodes,
        queues=found,
        sources=(" ".join(RESOURCES), " ".join(RESOURCE_SET), " ".join(QUEUES)),
        remarks=tuple(remarks),
    )


def _table(resources: str) -> list[Mapping[str, str]]:
    return [row for row in rows(resources, "STATE", "NODELIST") if row is not None]


def _nodes(
    table: Iterable[Mapping[str, str]], exact: Mapping[str, tuple[Hardware, frozenset[str]]], queues: Sequence[str]
) -> Iterator[ProbedNode]:
    """Yield the nodes of a table. If there is no resource set, a row's cores and GPUs are divided among its nodes."""
    members: dict[str, list[str]] = {}
    shares: dict[str, Hardware] = {}
    shown: dict[str, list[str]] = {}
    for row in table:
        names = listed(row.get("NODELIST", ""))
        its = [word for word in row["QUEUE"].split(",") if word in queues] if "QUEUE" in row else list(queues)
        for name in names:
            members.setdefault(name, []).extend(one for one in its if one not in members.get(name, ()))
            shown[name] = row["PROPERTIES"].split(",") if "PROPERTIES" in row else []
            shares[name] = Hardware(
                cores=_share(row.get("NCORES"), names) or None, gpus=_share(row.get("NGPUS"), names)
            )
    for name, its_queues in members.items():
        hardware, properties = exact.get(name, (shares[name], frozenset(shown[name])))
        yield ProbedNode(name, hardware, properties - {*queues}, tuple(its_queues))


def _share(total: str | None, names: Sequence[str]) -> int | None:
    """Return each node's share if all shares are equal, or else None."""
    count = len(names)
    number = _number(total)
    return number // count if number is not None and count and number % count == 0 else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


def _from_resource_set(text: str | None) -> dict[str, tuple[Hardware, frozenset[str]]]:
    """Return each node's cores, GPUs and properties from a resource set (RFC 20).

    The result is empty if there is no resource set.
    """
    try:
        execution = json.loads(text or "")["execution"]
        names = [name for part in execution["nodelist"] for name in hosts_of(part)]
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
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, NodeSetException):
        return {}
    return found


def _queues(text: str) -> Iterator[Queue]:
    for row in rows(text, "QUEUE", "EN"):
        if not row or "QUEUE" not in row:
            continue
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
    """Parse a range such as ``0-4`` or ``1-inf``. An infinite upper bound becomes None."""
    low, _, high = text.partition("-")
    return _number(low) or 0, _number(high) or None


def _wall(text: str) -> str | None:
    """Convert a Flux Standard Duration (RFC 23) such as ``1.5h``. Returns None for ``inf``."""
    found = _DURATION.fullmatch(text)
    if found is None or len(found[1]) > 9:
        return None
    seconds = int(float(found[1]) * _UNITS[found[2]])
    days, hours = divmod(seconds // 3600, 24)
    clock = f"{hours:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def _numbers(text: str) -> list[int]:
    """Expand an idset such as ``0-3,7``."""
    found: list[int] = []
    for word in filter(None, str(text).split(",")):
        low, _, high = word.partition("-")
        if int(high or low) - int(low) > MOST_NODES:
            raise ValueError(text)
        found += range(int(low), int(high or low) + 1)
    return found

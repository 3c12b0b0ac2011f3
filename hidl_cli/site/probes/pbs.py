"""Probe PBS (PBS Professional 14 or later, OpenPBS) with the JSON output of ``qstat`` and ``pbsnodes``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.site.probes.facts import Hardware, ProbedNode, Queue, SchedulerFacts
from hidl_cli.site.probes.host import Host

_SECONDS = 30.0
SERVER = ("qstat", "-B", "-f", "-F", "json")
QUEUES = ("qstat", "-Q", "-f", "-F", "json")
NODES = ("pbsnodes", "-a", "-F", "json")
_TRUE = ("True", "true", "t", "1", True)
_BUILT_IN = frozenset({"arch", "host", "vnode"})  # resources that do not characterize a kind of node
_MODELS = ("gpu_model", "gpu_type")  # custom resources that sites use for GPU models
_WALL = re.compile(r"[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]")
_SIZE = re.compile(r"([0-9]+)([kmgtp]?)(b|w)?", re.IGNORECASE)
_UNITS = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}


def probe(host: Host) -> SchedulerFacts | None:
    """Probe this host's PBS. Returns None if there is no ``pbsnodes``.

    The number of cores remains unknown because ``ncpus`` counts the processors that a node's kernel reports, which may
    be cores or hardware threads.
    """
    if host.which(SYSTEMS["pbs"].shows) is None:
        return None
    server = host.ask(*SERVER, seconds=_SECONDS)
    if not _mapping(_document(server), "Server"):
        return SchedulerFacts("pbs")
    return describe(
        server=_document(server),
        queues=_document(host.ask(*QUEUES, seconds=_SECONDS)),
        nodes=_document(host.ask(*NODES, seconds=_SECONDS)),
    )


def describe(
    *,
    server: Mapping[str, Any] | None = None,
    queues: Mapping[str, Any] | None = None,
    nodes: Mapping[str, Any] | None = None,
) -> SchedulerFacts:
    """Describe PBS, given its commands' JSON output.

    Pass None for a command that was not run or printed nothing.
    """
    servers = _mapping(server or {}, "Server")
    name, about = next(iter(servers.items()), (None, None))
    known = {key: each for key, each in _mapping(queues or {}, "Queue").items() if isinstance(each, Mapping)}
    listed = {key: each for key, each in _mapping(nodes or {}, "nodes").items() if isinstance(each, Mapping)}
    found = _hosts(listed)
    has_gpus = any("ngpus" in _resources(each) for each in found.values())
    default = about.get("default_queue") if isinstance(about, Mapping) else None
    remarks = [] if has_gpus or not found else ["no node has the resource ngpus, so the GPUs of nodes are unknown"]
    if found:
        remarks.append("cores of nodes are unknown, because PBS counts processors, which may be cores or threads")
    return SchedulerFacts(
        "pbs",
        version=_text((server or {}).get("pbs_version")),
        cluster=name,
        nodes=tuple(_node(key, each, known, has_gpus=has_gpus) for key, each in found.items()),
        queues=tuple(_queue(key, each, known, is_default=key == default) for key, each in known.items()),
        sources=tuple(" ".join(command[:-2]) for command in (SERVER, QUEUES, NODES)),
        remarks=tuple(remarks),
    )


def _document(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _mapping(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = answer.get(key)
    return found if isinstance(found, Mapping) else {}


def _resources(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(node, "resources_available")


def _hosts(vnodes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Merge each host's vnodes into one node with the sum of their resources.

    With ``vnode_per_numa_node``, each NUMA domain is a vnode (``n1[0]``, ``n1[1]``), and the host's own vnode has no
    processors.
    """
    parts: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, vnode in vnodes.items():
        host = _resources(vnode).get("host")
        parts.setdefault(host if isinstance(host, str) else name, {})[name] = vnode
    return dict(_joined(host, own) for host, own in parts.items())


def _joined(host: str, vnodes: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Return a host's name and its merged vnodes."""
    if len(vnodes) == 1:
        return next(iter(vnodes.items()))
    resources: dict[str, Any] = {}
    for each in map(_resources, vnodes.values()):
        resources |= {key: value for key, value in each.items() if key not in resources}
    for key in ("ncpus", "ngpus"):
        numbers = [number for each in vnodes.values() if (number := _number(_resources(each).get(key))) is not None]
        resources |= {key: sum(numbers)} if numbers else {}
    memory = [mib for each in vnodes.values() if (mib := _mebibytes(_resources(each).get("mem"))) is not None]
    resources |= {"mem": f"{int(sum(memory) * 1024)}kb"} if memory else {}
    attributes = {key: value for each in list(vnodes.values())[::-1] for key, value in each.items()}
    return host, attributes | {"resources_available": resources}


def _node(name: str, node: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]], *, has_gpus: bool) -> ProbedNode:
    resources = _resources(node)
    custom = {key: each for key, each in resources.items() if isinstance(each, str) and key not in _BUILT_IN}
    gpus = _number(resources.get("ngpus")) or 0 if has_gpus else None
    return ProbedNode(
        name,
        Hardware(
            processors=_number(resources.get("ncpus")),
            memory_mib=_mebibytes(resources.get("mem")),
            gpus=gpus,
            gpu_model=next((custom[key] for key in _MODELS if key in custom), None) if gpus else None,
        ),
        features=frozenset(f"{key}={each}" for key, each in custom.items() if not _SIZE.fullmatch(each))
        | frozenset(filter(None, str(node.get("properties", "")).split(","))),  # only on Torque
        queues=tuple(queue for queue, each in queues.items() if _serves(node, queue, each, queues)),
    )


def _serves(
    node: Mapping[str, Any], name: str, queue: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Return whether the queue's jobs can run on the node.

    This depends on the node's ``queue`` if it is set, or else on the resources that the queue adds to each chunk
    (``default_chunk.Qlist=...``). A routing queue uses the nodes of its destinations.
    """
    if queue.get("queue_type") == "Route":
        return any(_serves(node, one, queues[one], queues) for one in _destinations(queue, queues))
    if "queue" in node:
        return bool(node["queue"] == name)
    required = {key: each for key, each in _mapping(queue, "default_chunk").items() if isinstance(each, str)}
    resources = _resources(node)
    return all(
        each in str(resources.get(key, "")).split(",") for key, each in required.items() if not _SIZE.fullmatch(each)
    )


def _named(queue: Mapping[str, Any]) -> list[str]:
    """Return the names of all of a routing queue's destinations, whether known or not."""
    listed = queue.get("route_destinations")
    words = listed if isinstance(listed, list) else str(listed or "").split(",")
    return [name for word in words if (name := str(word).strip().partition("@")[0])]


def _destinations(queue: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the execution queues among a routing queue's destinations."""
    return [name for name in _named(queue) if name in queues and queues[name].get("queue_type") != "Route"]


def _shown(name: str, queues: Mapping[str, Mapping[str, Any]]) -> str:
    """Format a destination with the limits that determine which jobs are routed to it."""
    if name not in queues:
        return f"{name} (unknown here)"
    least, wall = _mapping(queues[name], "resources_min").get("walltime"), _limits(queues[name])[2]
    limits = [f"from {least}"] if isinstance(least, str) else []
    limits += [f"up to {wall}"] if wall else []
    return f"{name} ({' '.join(limits)})" if limits else name


def _queue(name: str, queue: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]], *, is_default: bool) -> Queue:
    targets = [queues[one] for one in _destinations(queue, queues)] or [queue]
    most = [_limits(one)[1] for one in targets]
    walls = [_limits(one)[2] for one in targets]
    own_fewest, own_most, own_wall = _limits(queue)
    lists = [key for key in ("acl_user_enable", "acl_group_enable", "acl_host_enable") if queue.get(key) in _TRUE]
    remarks = [f"{key}: restricted to the users, groups or hosts on a list" for key in lists]
    if queue.get("queue_type") == "Route":
        shown = [_shown(one, queues) for one in _named(queue)]
        remarks.append(f"routes jobs to {', '.join(shown) or 'no queue of this server'}")
    if queue.get("started") not in _TRUE:
        remarks.append("not started")
    return Queue(
        name,
        is_default=is_default,
        min_nodes=max(own_fewest, min(_limits(one)[0] for one in targets)),
        max_nodes=own_most or (max(map(int, filter(None, most))) if all(most) else None),
        max_wall=own_wall or (max(filter(None, walls), key=_seconds) if all(walls) else None),
        restricted="acl_user_enable" in lists or "acl_group_enable" in lists,
        left_out=_reason(queue),
        remarks=tuple(remarks),
    )


def _reason(queue: Mapping[str, Any]) -> str | None:
    """Return why jobs cannot be submitted to the queue, or None if they can."""
    if queue.get("enabled") not in _TRUE:
        return "it is disabled"
    return "it only accepts jobs from routing queues" if queue.get("from_route_only") in _TRUE else None


def _limits(queue: Mapping[str, Any]) -> tuple[int, int | None, str | None]:
    """Return a job's minimum and maximum number of nodes, and its maximum run time as ``hours:minutes:seconds``."""
    least, most = _mapping(queue, "resources_min"), _mapping(queue, "resources_max")
    fewest, at_most = _number(least.get("nodect")) or 1, _number(most.get("nodect"))
    wall = str(most.get("walltime", ""))
    if wall.isdecimal() and len(wall) < 8:  # seconds
        wall = f"{int(wall) // 3600:02}:{int(wall) // 60 % 60:02}:{int(wall) % 60:02}"
    usable = at_most if at_most and at_most >= fewest else None
    return fewest, usable, wall if _WALL.fullmatch(wall) else None


def _seconds(wall: str) -> int:
    hours, minutes, seconds = wall.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _number(value: object) -> int | None:
    return int(str(value)) if re.fullmatch(r"[0-9]{1,9}", str(value)) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _mebibytes(value: object) -> int | None:
    """Convert a size such as ``24681992kb``; a word (``w``) has eight bytes."""
    found = _SIZE.fullmatch(str(value))
    if found is None or len(found[1]) > 15:
        return None
    return round(int(found[1]) * _UNITS[found[2].lower()] * (8 if (found[3] or "b").lower() == "w" else 1)) or None

"""Load sites by name, or load this machine's site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import BaseModel

from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import Detection, choose, detect
from hidl_cli.site.hidl_cluster import ClusterSize, QueueLimits, size
from hidl_cli.site.machine import gpus, machine
from hidl_cli.site.schema import NodeType, Partition, Site

_OF_THE_SITE = ("status", "interconnect", "scheduler", "launchers", "node_types", "partitions", "mpi")
_OF_GPUS = ("gpu_model", "gpu_arch", "gpu_memory_gib")
_OF_A_RUNNING_ONE = ("max_nodes", "max_wall")
_OPTIONS = ("queue", "qos", "constraint")  # null: no such option

#: Cores per node of a twin (a local copy of a site), if the site file does not set them.
ASSUMED_CORES = 16


def unknown_facts(site: Site) -> tuple[tuple[str, ...], ...]:
    """Return the paths of all unknown facts about the site, its node types and its partitions.

    Facts that do not apply or that follow from others, such as the GPU model of nodes without GPUs, are left out. The
    scheduler ``local`` needs neither an interconnect nor a site MPI library. The sizes and limits of hidl's own cluster
    come from the running cluster.
    """
    return (*_of_site(site), *_of_node_types(site), *_of_partitions(site))


def consequence(path: tuple[str, ...]) -> str | None:
    """Describe what hidl does if the fact at ``path`` is unknown. Returns None if that makes no difference."""
    if path[0] == "node_types" and path[-1] == "cores":
        return f"ranks are not bound to cores; a twin's nodes get {ASSUMED_CORES} cores"
    return None


def _of_site(site: Site) -> Iterator[tuple[str, ...]]:
    for key in _OF_THE_SITE:
        if not getattr(site, key) and not (site.scheduler == "local" and key in ("interconnect", "mpi")):
            yield (key,)
    if site.partitions and site.default_partition is None:
        yield ("default_partition",)


def _of_node_types(site: Site) -> Iterator[tuple[str, ...]]:
    for name, node in site.node_types.items():
        yield from (("node_types", name, key) for key, value in node if value is None and not _is_moot(node, key))


def _is_moot(node: NodeType, key: str) -> bool:
    """Return whether a fact does not apply to a node type or is never needed."""
    if key in ("hosts", "mtbf_hours"):
        return True
    return (node.gpus == 0 and key in _OF_GPUS) or (node.detect and key in ("count", *_OF_GPUS[1:]))


def _of_partitions(site: Site) -> Iterator[tuple[str, ...]]:
    charges = any(partition.charge is not None for partition in site.partitions.values())
    for name, partition in site.partitions.items():
        for key, value in partition:
            if site.hidl_cluster and key in _OF_A_RUNNING_ONE:
                continue
            if value is None and not _is_settled(partition, key, site_charges=charges):
                yield ("partitions", name, key)


def _is_settled(partition: Partition, key: str, *, site_charges: bool) -> bool:
    """Return whether a fact may be missing.

    This is the case for ``max_wall`` if limits depend on the job size, and for charges if the site has none.
    """
    if key == "max_wall":
        return bool(partition.max_wall_by_nodes)
    return key in _OPTIONS or (key == "charge" and not site_charges)


M = TypeVar("M", bound=BaseModel)


def load_site(name: str | None = None) -> Site:
    """Load a site by name or, without a name, the detected site or else ``local``.

    Node types with ``detect: true`` are completed from this machine. Raises ``UsageError`` for an unknown name, and
    ``InvalidInput`` if the file is invalid or if more than one site matches.
    """
    return resolve(load(RULES, name or choose(detect()) or "local"))


def resolve(site: Site) -> Site:
    """Return the site with this machine's values in node types with ``detect: true``.

    The limits and nodes of hidl's own cluster are those of the running cluster.
    """
    if site.hidl_cluster and (found := size()):
        site = _sized(site, found)
    node_types = {name: _filled(node) if node.detect else node for name, node in site.node_types.items()}
    return site.model_copy(update={"node_types": node_types})


def _sized(site: Site, found: ClusterSize) -> Site:
    node_types = {
        name: _with(node, **{key: values.get(name) for key, values in found.of_nodes.items()})
        for name, node in site.node_types.items()
    }
    partitions = {name: _limited(each, found.queues.get(each.queue or name)) for name, each in site.partitions.items()}
    return site.model_copy(update={"node_types": node_types, "partitions": partitions})


def _limited(partition: Partition, queue: QueueLimits | None) -> Partition:
    if queue is None:
        return partition
    minutes = queue.max_minutes
    max_wall = None if minutes is None else f"{minutes // 60:02}:{minutes % 60:02}:00"
    return _with(partition, max_nodes=queue.max_nodes, max_wall=max_wall)


def _with(model: M, **values: Any) -> M:
    """Return the model with ``values`` in place of its unset fields."""
    return model.model_copy(update={key: value for key, value in values.items() if getattr(model, key) is None})


def _filled(node: NodeType) -> NodeType:
    facts: dict[str, Any] = asdict(machine())
    if node.gpus is None or (node.gpus > 0 and node.gpu_model is None):  # detecting GPUs can take seconds
        found = gpus()
        facts |= {"gpus": found.gpus, "gpu_model": found.gpu_model}
    return _with(node, **facts)


# Explain, as text and as data, which site was detected.


FALLBACK = "local"  # the site to use if none matches


def explained(site: str | None, outcomes: Iterable[Detection], schedulers: Mapping[str, str]) -> str:
    """Explain which site was detected and why.

    ``schedulers`` maps each scheduler found here to one of its programs.
    """
    if site is None:
        return _nothing_matched(schedulers)
    (outcome,) = (one for one in outcomes if one.site == site)
    others = [one.site for one in outcomes if one.matched and one.site != site]
    count = len(outcome.conditions)
    ground = "its only condition matches" if count == 1 else f"{count} of {count} conditions match"
    lines = [f"this is {site}: {ground} ({'; '.join(outcome.reasons)})"]
    if others:
        lines.append(f"also matching, with fewer conditions: {', '.join(others)}")
    if count == 1:
        lines.append("a single condition may also match other machines; add another one under `match`")
    fallback = others[0] if others else FALLBACK
    return "\n".join([*lines, f"without this match, hidl would use `{fallback}`; --site overrides it"])


def as_document(outcome: Detection) -> dict[str, Any]:
    """Return a site's result as JSON data."""
    conditions = [
        {
            "subject": condition.subject,
            "pattern": condition.pattern,
            "value": condition.value,
            "holds": condition.holds,
        }
        for condition in outcome.conditions
    ]
    return {
        "site": outcome.site,
        "matched": outcome.matched,
        "reasons": list(outcome.reasons),
        "conditions": conditions,
    }


def _nothing_matched(schedulers: Mapping[str, str]) -> str:
    message = f"no site matches; hidl uses `{FALLBACK}`, the machine that it runs on"
    if not schedulers:
        return message
    found = ", ".join(f"{name} ({program})" for name, program in schedulers.items())
    return f"{message}\nfound a scheduler: {found}; `hidl site new` drafts a site file for this cluster"

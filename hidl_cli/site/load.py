"""Sites by name, or the site that hidl runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import BaseModel

from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import Detection, choose, detect
from hidl_cli.site.hidl_cluster import Queue, Size, size
from hidl_cli.site.machine import gpus, machine
from hidl_cli.site.schema import NodeType, Partition, Site

_OF_THE_SITE = ("status", "interconnect", "scheduler", "launchers", "node_types", "partitions", "mpi")
_OF_GPUS = ("gpu_model", "gpu_arch", "gpu_memory_gib")
_OF_A_RUNNING_ONE = ("max_nodes", "max_wall")
_OPTIONS = ("queue", "qos", "constraint")  # null: no such option

ASSUMED_CORES = 16
"""Cores that a twin's node claims if the site file does not set them."""


def unknown_facts(site: Site) -> tuple[tuple[str, ...], ...]:
    """Paths of unset facts of the site, its node types and its partitions.

    Facts that follow from others or do not apply are left out, such as the GPU model of nodes without GPUs. The
    scheduler ``local`` needs no network, and no MPI library beside those of the stacks. hidl's own cluster has the
    sizes and limits of the running one.
    """
    return (*_of_site(site), *_of_node_types(site), *_of_partitions(site))


def consequence(path: tuple[str, ...]) -> str | None:
    """What hidl does without the fact at ``path``; None if nothing changes."""
    if path[0] == "node_types" and path[-1] == "cores":
        return f"ranks are not bound to cores; nodes of a twin claim {ASSUMED_CORES}"
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
    """Nodes without GPUs have no GPU model; this machine needs no count; no run needs host names."""
    if key == "hosts":
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
    """Limits by job size replace ``max_wall``; a charge is expected if another partition has one."""
    if key == "max_wall":
        return bool(partition.max_wall_by_nodes)
    return key in _OPTIONS or (key == "charge" and not site_charges)


M = TypeVar("M", bound=BaseModel)


def load_site(name: str | None = None) -> Site:
    """The site of that name; for None the detected site, else ``local``.

    What it extends is merged, and node types with ``detect: true`` are filled from this machine. Raises ``UsageError``
    for an unknown name and ``InvalidInput`` for a faulty file, or where more than one site matches.
    """
    return resolve(load(RULES, name or choose(detect()) or "local"))


def resolve(site: Site) -> Site:
    """The site with every null of its ``detect: true`` node types filled from this machine, as far as it tells.

    Sizes and limits of hidl's own cluster are filled from that.
    """
    if site.hidl_cluster and (found := size()):
        site = _sized(site, found)
    node_types = {name: _filled(node) if node.detect else node for name, node in site.node_types.items()}
    return site.model_copy(update={"node_types": node_types})


def _sized(site: Site, found: Size) -> Site:
    node_types = {
        name: _with(node, **{key: values.get(name) for key, values in found.of_nodes.items()})
        for name, node in site.node_types.items()
    }
    partitions = {name: _limited(each, found.queues.get(each.queue or name)) for name, each in site.partitions.items()}
    return site.model_copy(update={"node_types": node_types, "partitions": partitions})


def _limited(partition: Partition, queue: Queue | None) -> Partition:
    if queue is None:
        return partition
    minutes = queue.max_minutes
    max_wall = None if minutes is None else f"{minutes // 60:02}:{minutes % 60:02}:00"
    return _with(partition, max_nodes=queue.max_nodes, max_wall=max_wall)


def _with(model: M, **values: Any) -> M:
    """The model with those of ``values`` that it leaves null."""
    return model.model_copy(update={key: value for key, value in values.items() if getattr(model, key) is None})


def _filled(node: NodeType) -> NodeType:
    facts: dict[str, Any] = asdict(machine())
    if node.gpus is None or (node.gpus > 0 and node.gpu_model is None):  # asking costs up to seconds
        found = gpus()
        facts |= {"gpus": found.gpus, "gpu_model": found.gpu_model}
    return _with(node, **facts)


# Why hidl takes this machine for the site that it does, for people and for programs.


FALLBACK = "local"  # the site where none matches


def explained(site: str | None, outcomes: Iterable[Detection], schedulers: Mapping[str, str]) -> str:
    """What was decided, on what ground, and what would be used otherwise; ``schedulers``: those whose programs are
    here, each with one."""
    if site is None:
        return _nothing_matched(schedulers)
    (outcome,) = (one for one in outcomes if one.site == site)
    others = [one.site for one in outcomes if one.matched and one.site != site]
    count = len(outcome.conditions)
    ground = "its only condition holds" if count == 1 else f"{count} of {count} conditions hold"
    lines = [f"this is {site}: {ground} ({'; '.join(outcome.reasons)})"]
    if others:
        lines.append(f"{', '.join(others)} matched too, by fewer conditions")
    if count == 1:
        lines.append("one condition alone is weak ground: a further one under `match` makes it sure")
    return "\n".join(
        [*lines, f"without this match it would be `{others[0] if others else FALLBACK}`; --site overrides it"]
    )


def as_document(outcome: Detection) -> dict[str, Any]:
    """One site's outcome for programs: what each of its conditions was held against."""
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
    said = f"no site matches: hidl uses `{FALLBACK}`, the machine you sit at"
    if not schedulers:
        return said
    found = ", ".join(f"{name} ({program})" for name, program in schedulers.items())
    return f"{said}\nbut a scheduler is here: {found}; `hidl site new` drafts a site file for this cluster"

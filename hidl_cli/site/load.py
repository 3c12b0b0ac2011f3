"""Sites by name, or the site that hidl runs on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import BaseModel

from hidl_cli.inputs.load import load
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.hidl_cluster import Queue, Size, size
from hidl_cli.site.machine import gpus, machine
from hidl_cli.site.schema import NodeType, Partition, Site

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

"""What a site's file leaves unknown: the facts that hidl, or a user, would want to have."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.site.schema import NodeType, Partition, Site

_OF_THE_SITE = ("status", "interconnect", "scheduler", "launchers", "node_types", "partitions", "mpi")
_OF_GPUS = ("gpu_model", "gpu_arch", "gpu_memory_gib")
_WAYS_TO_ASK = ("queue", "qos", "constraint")  # null there says that nothing is asked for


def unknown_facts(site: Site) -> tuple[tuple[str, ...], ...]:
    """The paths of the unknown facts: of the site, its node types and its partitions.

    What follows from another fact, or has no meaning here, is no unknown fact: the GPU's model where there is no GPU.
    The machine that hidl runs on (scheduler ``local``) needs no network, and no MPI library but those of the stacks.
    """
    return (*_of_site(site), *_of_node_types(site), *_of_partitions(site))


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
    """Nodes without GPUs have no model of them; nobody counts the nodes of the machine that one sits at."""
    return (node.gpus == 0 and key in _OF_GPUS) or (node.detect and key in ("count", *_OF_GPUS[1:]))


def _of_partitions(site: Site) -> Iterator[tuple[str, ...]]:
    charges = any(partition.charge is not None for partition in site.partitions.values())
    for name, partition in site.partitions.items():
        for key, value in partition:
            if value is None and not _is_settled(partition, key, site_charges=charges):
                yield ("partitions", name, key)


def _is_settled(partition: Partition, key: str, *, site_charges: bool) -> bool:
    """Limits by the job's size stand for the one limit; a price is missed where other partitions have one."""
    if key == "max_wall":
        return bool(partition.max_wall_by_nodes)
    return key in _WAYS_TO_ASK or (key == "charge" and not site_charges)

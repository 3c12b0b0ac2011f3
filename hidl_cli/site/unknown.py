"""Facts that a site file does not set, and what follows from that."""

from __future__ import annotations

from collections.abc import Iterator

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

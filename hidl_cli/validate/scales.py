"""Scales by name: how large a check's run is, in words that every site understands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import UsageError
from hidl_cli.launch.hosts import parse_hosts
from hidl_cli.site.schema import NodeType, Site

_LARGEST = 4096
FULL = "full"
#: Every name, the smallest first.
NAMES = ("1-rank", "1-node", *(f"{2**power}-nodes" for power in range(1, _LARGEST.bit_length())), FULL)
#: What a nightly can afford, and what is for maintenance days.
SMALL = NAMES[:4]
LARGE = NAMES[4:]


@dataclass(frozen=True)
class Scale:
    """``nodes`` nodes with ``ranks_per_node`` ranks on each; ``fullest``: as many as fill a node.

    ``least``: the fewest nodes that the partition allows, from which studies start. ``overhead``: ranks of each launch
    that do no work of their own, such as Dask's scheduler and client.
    """

    name: str
    nodes: int
    ranks_per_node: int
    fullest: int
    least: int = 1
    overhead: int = 0

    @property
    def study(self) -> str | None:
        """The sizes of a scaling study up to here, as ``hidl run --scale`` takes them; None: there is none."""
        if self.nodes > 1:
            return f"nodes={self.least},{self.nodes}" if self.nodes > self.least else None
        one = 1 + self.overhead
        return f"ranks={one},{self.ranks_per_node}" if self.ranks_per_node > one else None

    def with_overhead(self, ranks: int) -> Scale:
        """The same for a workload of which so many ranks of each launch do no work of their own.

        They come on top where a node would not hold two that do, so that a study finds something to compare.
        """
        if not ranks:
            return self

        def grown(each: int) -> int:
            return each if each > ranks + 1 else each + ranks

        return replace(self, ranks_per_node=grown(self.ranks_per_node), fullest=grown(self.fullest), overhead=ranks)


def offered(site: Site, partition: str | None = None) -> dict[str, Scale]:
    """The scales that a partition (None: the default one) allows, by name, the smallest first."""
    found, node = site.partition(partition), site.node_type(partition)
    most = (found.max_nodes if found else None) or _count(site, node)
    least = found.min_nodes if found else 1
    per_node = _ranks_per_node(node)
    scales = []
    if least == 1:
        scales.append(Scale("1-rank", 1, 1, per_node))
        scales += [Scale("1-node", 1, per_node, per_node)] if per_node > 1 else []
    sizes = [2**power for power in range(1, _LARGEST.bit_length()) if least <= 2**power <= most]
    scales += [Scale(f"{nodes}-nodes", nodes, _of_each_node(node), per_node, least) for nodes in sizes]
    if most > 1:
        scales.append(Scale(FULL, most, _of_each_node(node), per_node, least))
    return {scale.name: scale for scale in scales}


def scale(site: Site, partition: str | None, name: str) -> Scale:
    """The scale of that name; ``UsageError`` if the partition does not allow it."""
    scales = offered(site, partition)
    if name not in scales:
        raise UsageError(
            f"partition {partition or site.default_partition} of site {site.name} has no scale {name!r}",
            hint=f"it has: {', '.join(scales) or 'none'}",
        )
    return scales[name]


def _count(site: Site, node: NodeType) -> int:
    """The number of nodes; 1 if unknown."""
    hosts = parse_hosts(node.hosts).names if site.scheduler == SSH and node.hosts else ()
    return node.count or len(hosts) or 1


def _of_each_node(node: NodeType) -> int:
    """A rank for each GPU, as ``hidl run`` has it."""
    return node.gpus or 1


def _ranks_per_node(node: NodeType) -> int:
    """Ranks on one full node: one for each GPU, else for each socket; two where it has neither of them twice."""
    if (node.gpus or 0) > 1:
        return int(node.gpus or 0)
    if (node.sockets or 0) > 1:
        return int(node.sockets or 0)
    return 1 if node.cores == 1 else 2

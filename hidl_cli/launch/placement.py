"""Placement: how many ranks run where, with how many threads, and bound to what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hidl_cli.launch import limits
from hidl_cli.site.schema import NodeType, Site

#: Variables that tell the usual libraries how many threads a rank may use.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@dataclass(frozen=True)
class Topology:
    """The cores of a node, by the numbers that its operating system gives their first hardware threads.

    ``cores``: those that jobs may use, without ``reserved`` ones; None: unknown.
    """

    cores: int | None = None
    sockets: int = 1
    threads_per_core: int = 1
    reserved: tuple[int, ...] = ()

    @classmethod
    def of(cls, node: NodeType) -> Topology:
        """Return the topology of a site's node type; one socket and one thread per core where these are unknown."""
        return cls(node.cores, node.sockets or 1, node.threads_per_core or 1, tuple(node.reserved_cores))

    @property
    def numbers_by_socket(self) -> list[list[int]]:
        """The usable cores of each socket; empty if unknown, or if the cores do not divide evenly among sockets."""
        installed = (self.cores or 0) + len(self.reserved)
        each, rest = divmod(installed, self.sockets)
        if self.cores is None or rest:
            return []
        sockets = (range(first, first + each) for first in range(0, installed, each))
        return [[core for core in socket if core not in self.reserved] for socket in sockets]

    def fits_in_sockets(self, ranks: int, threads: int) -> bool:
        """Return whether so many ranks have room without one that straddles sockets."""
        return ranks <= sum(len(socket) // threads for socket in self.numbers_by_socket)

    def in_a_row(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank if all take theirs in a row, across sockets; empty if there are too few."""
        cores = [core for socket in self.numbers_by_socket for core in socket]
        if ranks * threads > len(cores):
            return []
        return [tuple(cores[first : first + threads]) for first in range(0, ranks * threads, threads)]

    def places(self, ranks: int, threads: int) -> list[tuple[int, ...]]:
        """Return the cores of each rank; the last ones straddle sockets if they must. Empty if unknown."""
        sockets = self.numbers_by_socket
        whole = [
            tuple(socket[first : first + threads])
            for socket in sockets
            for first in range(0, len(socket) - threads + 1, threads)
        ]
        rest = [core for socket in sockets for core in socket[len(socket) // threads * threads :]]
        straddling = [tuple(rest[first : first + threads]) for first in range(0, len(rest) - threads + 1, threads)]
        found = [*whole, *straddling]
        return found[:ranks] if ranks <= len(found) else []


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as launchers and ``taskset`` read them: ``16-23,40-47``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@dataclass(frozen=True)
class Placement:
    """``nodes`` x ``ranks_per_node`` ranks of ``threads_per_rank`` threads.

    ``bind``: each rank is bound to as many cores of its own as it has threads; False if the node has too few.
    ``fills_node``: a rank has all cores of its node. ``ranks`` is less than the product if the last node is not full.
    ``node``: the cores of each node.
    """

    nodes: int
    ranks_per_node: int
    ranks: int
    threads_per_rank: int = 1
    bind: bool = False
    fills_node: bool = False
    node: Topology = Topology()

    @classmethod
    def of_nodes(cls, nodes: int, ranks_per_node: int) -> Placement:
        """``nodes`` full nodes."""
        return cls(nodes, ranks_per_node, nodes * ranks_per_node)

    @classmethod
    def of_ranks(cls, ranks: int, ranks_per_node: int | None) -> Placement:
        """``ranks`` on as few nodes as possible, ``ranks_per_node`` on each (None: all on one node)."""
        per_node = min(ranks, ranks_per_node or ranks)
        return cls(-(-ranks // per_node), per_node, ranks)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The cores of each rank of a full node; empty if unknown."""
        return self.node.places(self.ranks_per_node, self.threads_per_rank)

    @property
    def straddles_in_a_row(self) -> bool:
        """Return whether ranks that take cores in a row straddle sockets, although all have room within them."""
        ranks, threads = self.ranks_per_node, self.threads_per_rank
        return self.node.fits_in_sockets(ranks, threads) and self.places != self.node.in_a_row(ranks, threads)

    def environment(self) -> dict[str, str]:
        """The variables that limit libraries to ``threads_per_rank`` threads."""
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads_per_rank))
        return {**threads, "TF_NUM_INTEROP_THREADS": "1"}


def bind_to_cores(
    site: Site,
    placements: Sequence[Placement],
    *,
    partition: str | None = None,
    threads: int | None = None,
) -> list[Placement]:
    """Give the ranks of each placement threads, and cores of the site's nodes, in the same order.

    All get the same number of threads per rank (``threads``, or the cores of a node divided among the ranks of the
    fullest one), so the steps of a study differ only in their number of ranks. Raises ``UsageError`` for an unknown
    partition, and ``SubmitRefused`` if the largest placement, whose job the others share, exceeds its limits.
    """
    limits.check_nodes(site, partition, max(placement.nodes for placement in placements))
    node = Topology.of(site.node_type(partition))
    cores = node.cores
    fullest = max(placement.ranks_per_node for placement in placements)
    per_rank = threads or max(1, (cores or fullest) // fullest)
    bind = cores is not None and fullest * per_rank <= cores
    return [
        replace(placement, threads_per_rank=per_rank, bind=bind, fills_node=per_rank == cores, node=node)
        for placement in placements
    ]

"""Placement: how many ranks run where, with how many threads, and bound to what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hidl_cli.launch import limits
from hidl_cli.site.schema import Site

#: Variables that tell the usual libraries how many threads a rank may use.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@dataclass(frozen=True)
class Placement:
    """``nodes`` x ``ranks_per_node`` ranks of ``threads_per_rank`` threads.

    ``bind``: each rank is bound to as many cores of its own as it has threads; False if the node has too few.
    ``fills_node``: a rank has all cores of its node. ``ranks`` is less than the product if the last node is not full.
    """

    nodes: int
    ranks_per_node: int
    ranks: int
    threads_per_rank: int = 1
    bind: bool = False
    fills_node: bool = False

    @classmethod
    def of_nodes(cls, nodes: int, ranks_per_node: int) -> Placement:
        """``nodes`` full nodes."""
        return cls(nodes, ranks_per_node, nodes * ranks_per_node)

    @classmethod
    def of_ranks(cls, ranks: int, ranks_per_node: int | None) -> Placement:
        """``ranks`` on as few nodes as possible, ``ranks_per_node`` on each (None: all on one node)."""
        per_node = min(ranks, ranks_per_node or ranks)
        return cls(-(-ranks // per_node), per_node, ranks)

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
    cores = site.node_type(partition).cores
    fullest = max(placement.ranks_per_node for placement in placements)
    per_rank = threads or max(1, (cores or fullest) // fullest)
    bind = cores is not None and fullest * per_rank <= cores
    return [
        replace(placement, threads_per_rank=per_rank, bind=bind, fills_node=per_rank == cores)
        for placement in placements
    ]

"""Placement: how many ranks run where, with how many threads, and bound to what."""

from __future__ import annotations

from dataclasses import dataclass

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

    ``bind``: each rank is bound to as many cores of its own as it has threads; False where the node has too few.
    ``ranks`` can be less than the product when the last node is not full.
    """

    nodes: int
    ranks_per_node: int
    ranks: int
    threads_per_rank: int
    bind: bool

    def environment(self) -> dict[str, str]:
        """The variables that hold libraries to ``threads_per_rank`` threads."""
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads_per_rank))
        return {**threads, "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True)
class Size:
    """What one step of a study is given: ``nodes`` and ``ranks_per_node``, or a number of ``ranks`` outright."""

    nodes: int
    ranks_per_node: int
    ranks: int

    @classmethod
    def of_nodes(cls, nodes: int, ranks_per_node: int) -> Size:
        """``nodes`` full nodes."""
        return cls(nodes, ranks_per_node, nodes * ranks_per_node)

    @classmethod
    def of_ranks(cls, ranks: int, ranks_per_node: int | None) -> Size:
        """``ranks`` on as few nodes as hold them, ``ranks_per_node`` on each (None: all on one node)."""
        per_node = min(ranks, ranks_per_node or ranks)
        return cls(-(-ranks // per_node), per_node, ranks)


def place(
    site: Site,
    sizes: list[Size],
    *,
    partition: str | None = None,
    threads: int | None = None,
) -> list[Placement]:
    """Place each size on the site's nodes, in the same order.

    All get the same number of threads per rank (``threads``, or the cores of a node divided among the ranks of the
    fullest one), so that the steps of a study differ in their number of ranks alone. Raises ``UsageError`` for an
    unknown partition, ``SubmitRefused`` where the largest size, which the others share their job with, is outside the
    partition's limits.
    """
    limits.check_nodes(site, partition, max(size.nodes for size in sizes))
    cores = site.node_type(partition).cores
    fullest = max(size.ranks_per_node for size in sizes)
    per_rank = threads or max(1, (cores or fullest) // fullest)
    return [
        Placement(
            nodes=size.nodes,
            ranks_per_node=size.ranks_per_node,
            ranks=size.ranks,
            threads_per_rank=per_rank,
            bind=cores is not None and fullest * per_rank <= cores,
        )
        for size in sizes
    ]

"""What all programs of this package take; units and meanings are those of the recipes in recipes/workloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hidl_workloads.arguments import number


@dataclass(frozen=True)
class Common:
    """Parameters of every program.

    ``partitions`` counts in mode ``hybrid`` only. ``batch``: images of one replica's step. ``micro_batches`` 0: chosen
    from the costs. ``memory_limit``: MiB of one rank, 0: none. ``refinements``: how often the stages are timed and the
    model is cut again.
    """

    mode: Literal["data", "model", "hybrid"] = "data"
    partitions: int = number(2, least=1)
    batch: int = number(64, least=1)
    micro_batches: int = number(0, least=0)
    schedule: Literal["gpipe", "1f1b", "interleaved", "gems"] = "1f1b"
    chunks: int = number(1, least=1)
    recompute: Literal["auto", "always", "never"] = "auto"
    memory_limit: int = number(0, least=0)
    costs: Literal["measured", "estimated"] = "measured"
    refinements: int = number(0, least=0)
    batch_norm: Literal["replica", "synchronised", "deferred"] = "replica"
    steps: int = number(10, least=1)
    warmup: int = number(2, least=0)
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    learning_rate: float = number(0.01, least=0)
    seed: int = number(0, least=0)
    timeline: bool = False
    note: str = ""

    def layout(self, ranks: int) -> tuple[int, int]:
        """Partitions and replicas in a world of so many ranks; raises ``ValueError`` where they do not divide."""
        partitions = {"data": 1, "model": ranks, "hybrid": self.partitions}[self.mode]
        if ranks % partitions:
            raise ValueError(
                f"replicas of {partitions} partitions each do not fit {ranks} ranks: take a multiple of {partitions}"
            )
        return partitions, ranks // partitions

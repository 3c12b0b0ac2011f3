"""Division of the ranks of a world into replicas and partitions."""

from __future__ import annotations

from hidl_workloads.parameters import Hyparflow


def divide_ranks(parameters: Hyparflow, ranks: int) -> tuple[int, int]:
    """Return the partitions of a replica and the replicas; raises ``ValueError`` if ``ranks`` is not divisible."""
    partitions = {"data": 1, "model": ranks, "hybrid": parameters.partitions}[parameters.mode]
    if ranks % partitions:
        raise ValueError(
            f"replicas of {partitions} partitions each do not fit {ranks} ranks: take a multiple of {partitions}"
        )
    return partitions, ranks // partitions

"""Division of the ranks of a world into replicas and partitions."""

from __future__ import annotations

from hidl_workloads.parameters import Hyparflow


def divide_ranks(parameters: Hyparflow, ranks: int) -> tuple[int, int]:
    """Return the partitions of a replica and the replicas; raises ``ValueError`` if ``ranks`` is not divisible."""
    partitions = {"data": 1, "model": ranks, "hybrid": parameters.partitions}[parameters.mode]
    if ranks % partitions:
        raise ValueError(
            f"{ranks} ranks cannot be divided into replicas of {partitions} partitions: use a multiple of {partitions}"
        )
    return partitions, ranks // partitions

"""Division of the ranks of a world into replicas, parts of their images, and partitions."""

from __future__ import annotations

from hidl_workloads.parameters import Hyparflow


def divide_ranks(parameters: Hyparflow, ranks: int) -> tuple[int, int]:
    """Return the partitions of a replica and the replicas; raises ``ValueError`` if ``ranks`` is not divisible."""
    spatial = parameters.spatial
    partitions = {"data": 1, "model": max(ranks // spatial, 1), "hybrid": parameters.partitions}[parameters.mode]
    of_replica = partitions * spatial
    if ranks % of_replica:
        parts = f" x {spatial} parts of the images" if spatial > 1 else ""
        raise ValueError(
            f"{ranks} ranks cannot be divided into replicas of {partitions} partitions{parts}: "
            f"use a multiple of {of_replica}"
        )
    return partitions, ranks // of_replica

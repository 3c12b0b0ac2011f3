"""GEMS: two copies of the model in inverse order over the same partitions, one micro-batch in memory at a time.

Source: Jain et al., "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training" (SC 2020):
the second copy's forward pass follows the first copy's backward pass down the partitions and takes the memory that it
frees. Any number of pairs of micro-batches goes through before the update (the paper's MASTER). The activations of
one micro-batch are the least that any schedule can do with; the price is a second copy of the weights and a bubble of
nearly 1 - 1/p.
"""

from __future__ import annotations

from hyparflow.schedules.actions import Action


def actions(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions: each pair of micro-batches goes up through pipeline 0 and down through pipeline 1."""
    pairs = micro_batches // 2
    inverse = partitions - 1 - partition
    order = []
    for pair in range(pairs):
        for stage, micro_batch, pipeline in ((partition, pair, 0), (inverse, pairs + pair, 1)):
            order += [Action("forward", stage, micro_batch, pipeline), Action("backward", stage, micro_batch, pipeline)]
    return tuple(order)

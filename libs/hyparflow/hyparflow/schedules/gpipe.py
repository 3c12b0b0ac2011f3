"""GPipe: all forward passes, then all backward passes.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (arXiv
1811.06965). Every micro-batch of the step is in flight at once. The backward passes come in the order of the
micro-batches, not in the reverse: the time is the same, and gradients are added in the order of the other schedules.
"""

from __future__ import annotations

from hyparflow.schedules.actions import Action


def actions(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions."""
    forward = tuple(Action("forward", partition, micro_batch) for micro_batch in range(micro_batches))
    return forward + tuple(Action("backward", partition, micro_batch) for micro_batch in range(micro_batches))

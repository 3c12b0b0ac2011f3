"""1F1B: a few forward passes to fill the pipeline, then one forward and one backward in turn.

Source: Narayanan et al., "PipeDream" (SOSP 2019), with the flush at the end of a step ("PipeDream-Flush", arXiv
2006.09503). Partition i of p holds at most p - i micro-batches, however many there are in the step; the bubble is
GPipe's.
"""

from __future__ import annotations

from hyparflow.schedules.actions import Action


def actions(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions."""
    warm_up = min(partitions - partition - 1, micro_batches)
    forward = [Action("forward", partition, micro_batch) for micro_batch in range(micro_batches)]
    backward = [Action("backward", partition, micro_batch) for micro_batch in range(micro_batches)]
    order = forward[:warm_up]
    for ahead, behind in zip(forward[warm_up:], backward, strict=False):  # the last backward passes have no partner
        order += [ahead, behind]
    return (*order, *backward[micro_batches - warm_up :])

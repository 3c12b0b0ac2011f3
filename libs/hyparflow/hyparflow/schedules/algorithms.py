"""The schedules.

GPipe: all forward passes, then all backward passes. Source: Huang et al., "GPipe: Efficient Training of Giant Neural
Networks using Pipeline Parallelism" (arXiv 1811.06965). Every micro-batch of the step is in flight at once. Backward
passes are in the order of the micro-batches, not in reverse: the time is the same, and gradients are added in the same
order as in the other schedules.

1F1B: a few forward passes to fill the pipeline, then one forward and one backward pass in turn. Source: Narayanan et
al., "PipeDream" (SOSP 2019), with the flush at the end of a step ("PipeDream-Flush", arXiv 2006.09503). Partition i of
p holds at most p - i micro-batches, however many there are in the step; the bubble is that of GPipe.

Interleaved 1F1B: each partition has several stages (chunks) that are not neighbours. Source: Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv 2104.04473), section 2.2. The
bubble is divided, and the number of messages multiplied, by the number of chunks. Micro-batches go in groups of p: p of
them through chunk 0, the same p through chunk 1, and so on.

GEMS: two copies of the model in inverse order over the same partitions, with one micro-batch in memory at a time.
Source: Jain et al., "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training" (SC 2020).
The second copy's forward pass follows the first copy's backward pass through the partitions and uses the memory that it
frees. Any number of pairs of micro-batches precedes the update (MASTER in the paper). The activations of one
micro-batch are the minimum for any schedule; the price is a second copy of the weights and a bubble of nearly 1 - 1/p.
"""

from __future__ import annotations

from collections.abc import Callable

from hyparflow.errors import PlanError
from hyparflow.schedules.actions import Action, Schedule, problems


def gpipe(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Return one partition's actions."""
    forward = tuple(Action("forward", partition, micro_batch) for micro_batch in range(micro_batches))
    return forward + tuple(Action("backward", partition, micro_batch) for micro_batch in range(micro_batches))


def one_f_one_b(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Return one partition's actions."""
    warm_up = min(partitions - partition - 1, micro_batches)
    forward = [Action("forward", partition, micro_batch) for micro_batch in range(micro_batches)]
    backward = [Action("backward", partition, micro_batch) for micro_batch in range(micro_batches)]
    order = forward[:warm_up]
    for ahead, behind in zip(forward[warm_up:], backward, strict=False):  # the last backward passes have no partner
        order += [ahead, behind]
    return (*order, *backward[micro_batches - warm_up :])


def interleaved(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Return one partition's actions."""
    total = micro_batches * chunks
    warm_up = (partitions - partition - 1) * 2 + (chunks - 1) * partitions
    warm_up = total if micro_batches == partitions else min(warm_up, total)

    def forward(turn: int) -> Action:
        return Action("forward", *_place(turn, partition, partitions, chunks, backwards=False))

    def backward(turn: int) -> Action:
        return Action("backward", *_place(turn, partition, partitions, chunks, backwards=True))

    order = [forward(turn) for turn in range(warm_up)]
    for turn in range(total - warm_up):
        order += [forward(warm_up + turn), backward(turn)]
    return (*order, *(backward(turn) for turn in range(total - warm_up, total)))


def _place(turn: int, partition: int, partitions: int, chunks: int, *, backwards: bool) -> tuple[int, int]:
    """Return stage and micro-batch of a partition's pass number ``turn`` in one direction."""
    group, within = divmod(turn, partitions * chunks)
    chunk, member = divmod(within, partitions)
    if backwards:
        chunk = chunks - 1 - chunk
    return chunk * partitions + partition, group * partitions + member


def gems(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Return one partition's actions: each pair of micro-batches goes up pipeline 0 and down pipeline 1."""
    pairs = micro_batches // 2
    inverse = partitions - 1 - partition
    order = []
    for pair in range(pairs):
        for stage, micro_batch, pipeline in ((partition, pair, 0), (inverse, pairs + pair, 1)):
            order += [Action("forward", stage, micro_batch, pipeline), Action("backward", stage, micro_batch, pipeline)]
    return tuple(order)


ALGORITHMS: dict[str, Callable[[int, int, int, int], tuple[Action, ...]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "gems": gems,
}


def schedule(name: str, partitions: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return the actions of each partition.

    Args:
        name: ``gpipe``, ``1f1b``, ``interleaved`` or ``gems``.
        partitions: Number of partitions.
        micro_batches: Micro-batches of one replica's step, of both pipelines together under GEMS.
        chunks: Stages per partition, more than 1 with ``interleaved`` only.

    Raises:
        PlanError: The numbers are invalid; all problems are reported.
    """
    if found := problems(name, partitions, micro_batches, chunks):
        raise PlanError(*found)
    return tuple(ALGORITHMS[name](partition, partitions, micro_batches, chunks) for partition in range(partitions))

"""GPipe: all forward passes, then all backward passes.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (arXiv
1811.06965). Every micro-batch of the step is in flight at once. The backward passes come in the order of the
micro-batches, not in the reverse: the time is the same, and gradients are added in the order of the other schedules.

1F1B: a few forward passes to fill the pipeline, then one forward and one backward in turn.

Source: Narayanan et al., "PipeDream" (SOSP 2019), with the flush at the end of a step ("PipeDream-Flush", arXiv
2006.09503). Partition i of p holds at most p - i micro-batches, however many there are in the step; the bubble is
GPipe's.

Interleaved 1F1B: each partition holds several stages (chunks) that are not neighbours.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), section 2.2. The bubble shrinks by the number of chunks, the messages multiply by it. Micro-batches go in
groups of p: p of them through chunk 0, the same p through chunk 1, and so on.

GEMS: two copies of the model in inverse order over the same partitions, one micro-batch in memory at a time.

Source: Jain et al., "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training" (SC 2020):
the second copy's forward pass follows the first copy's backward pass down the partitions and takes the memory that it
frees. Any number of pairs of micro-batches goes through before the update (the paper's MASTER). The activations of
one micro-batch are the least that any schedule can do with; the price is a second copy of the weights and a bubble of
nearly 1 - 1/p.
"""

from __future__ import annotations

from collections.abc import Callable

from hyparflow.errors import PlanError
from hyparflow.schedules.actions import Action, Schedule, problems


def gpipe(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions."""
    forward = tuple(Action("forward", partition, micro_batch) for micro_batch in range(micro_batches))
    return forward + tuple(Action("backward", partition, micro_batch) for micro_batch in range(micro_batches))


def one_f_one_b(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions."""
    warm_up = min(partitions - partition - 1, micro_batches)
    forward = [Action("forward", partition, micro_batch) for micro_batch in range(micro_batches)]
    backward = [Action("backward", partition, micro_batch) for micro_batch in range(micro_batches)]
    order = forward[:warm_up]
    for ahead, behind in zip(forward[warm_up:], backward, strict=False):  # the last backward passes have no partner
        order += [ahead, behind]
    return (*order, *backward[micro_batches - warm_up :])


def interleaved(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions."""
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
    """Stage and micro-batch of a partition's turn-th pass in one direction."""
    group, within = divmod(turn, partitions * chunks)
    chunk, member = divmod(within, partitions)
    if backwards:
        chunk = chunks - 1 - chunk
    return chunk * partitions + partition, group * partitions + member


def gems(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """One partition's actions: each pair of micro-batches goes up through pipeline 0 and down through pipeline 1."""
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
    """The actions of each partition.

    :param name: ``gpipe``, ``1f1b``, ``interleaved`` or ``gems``.
    :param micro_batches: of one replica's step; under GEMS those of both pipelines together.
    :param chunks: stages per partition; more than 1 with ``interleaved`` only.
    :raises PlanError: with everything that is wrong with the numbers.
    """
    if found := problems(name, partitions, micro_batches, chunks):
        raise PlanError(*found)
    return tuple(ALGORITHMS[name](partition, partitions, micro_batches, chunks) for partition in range(partitions))

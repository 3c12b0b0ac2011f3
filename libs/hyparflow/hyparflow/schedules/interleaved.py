"""Interleaved 1F1B: each partition holds several stages (chunks) that are not neighbours.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), section 2.2. The bubble shrinks by the number of chunks, the messages multiply by it. Micro-batches go in
groups of p: p of them through chunk 0, the same p through chunk 1, and so on.
"""

from __future__ import annotations

from hyparflow.schedules.actions import Action


def actions(partition: int, partitions: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
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

"""What the ranks hold: weights and what belongs to them, and activations between forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyparflow.planning.stages import Stage
from hyparflow.schedules.actions import Action

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


@dataclass(frozen=True)
class Memory:
    """What a rank keeps besides the activations, as multiples of its weights' bytes.

    `copies`: the weights, their gradients, and one more per slot of the optimizer (SGD with momentum 1, Adam 2;
    `use_ema` adds 1).
    """

    copies: float = 4.0
    limit: int | None = None  # bytes of one rank


def held_bytes(graph: Graph, node: int) -> int:
    """What one sample's pass of a node keeps for its backward pass: what it made."""
    return sum(graph.tensors[tensor].bytes_per_sample for tensor in graph.nodes[node].outputs)


def received_bytes(graph: Graph, stage: Stage) -> int:
    """The bytes of one sample that come into a stage, from other stages or as the model's inputs."""
    return sum(graph.tensors[tensor].bytes_per_sample for tensor in stage.receives)


def activation_bytes(graph: Graph, stage: Stage, samples: int) -> int:
    """What a stage keeps of one micro-batch: everything it made, or with recomputation only what it received."""
    received = received_bytes(graph, stage)
    return samples * (received if stage.recompute else received + sum(held_bytes(graph, node) for node in stage.nodes))


def working_bytes(graph: Graph, stage: Stage, samples: int) -> int:
    """What a stage needs for the moment of a pass: all activations of the one micro-batch, where it keeps them not."""
    if stage.sends and not stage.recompute:
        return 0
    return samples * sum(held_bytes(graph, node) for node in stage.nodes)


def peak_bytes(actions: Sequence[Action], stages: Sequence[Stage], memory: Memory) -> int:
    """The most that one partition holds in a step.

    :param actions: what it computes.
    :param stages: all stages of the model.
    """
    owned = {(action.stage, action.pipeline) for action in actions}  # under GEMS two stages live here
    weights = memory.copies * sum(stages[stage].parameter_bytes for stage, _ in owned)
    held = most = 0
    for action in actions:
        stage = stages[action.stage]
        if action.kind == "forward":
            held += stage.activation_bytes
        most = max(most, held + stage.working_bytes)
        if action.kind == "backward":
            held -= stage.activation_bytes
    return int(weights) + most

"""What each node costs, forward and backward, as seconds that do and do not grow with the samples of a micro-batch.

What the ranks hold: weights and what belongs to them, and activations between forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.planning.stages import Stage
from hyparflow.schedules import Action

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Node

    Seconds = np.ndarray[Any, np.dtype[np.float64]]
#: Layers whose work is a product with their weights, at every position of their output.
_PRODUCTS = (
    "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D",
    "Dense", "EinsumDense",
)  # fmt: skip
#: Those whose work is a product with their weights at every position of their input.
_TRANSPOSED = (
    "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "LSTM", "GRU", "SimpleRNN", "ConvLSTM2D",
)  # fmt: skip
_ATTENTION = ("MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")


@dataclass(frozen=True)
class Costs:
    """The costs of a graph's nodes on one rank. A pass of a node over n samples takes fixed + n * each seconds.

    The arrays have one value per node. `action_seconds` is what a stage's pass costs above the sum of its nodes.
    """

    forward_fixed: Seconds
    forward_each: Seconds
    backward_fixed: Seconds
    backward_each: Seconds
    action_seconds: float = 0.0
    source: str = "given"

    def forward(self, samples: float) -> Seconds:
        """Seconds of each node's forward pass over a micro-batch."""
        return self.forward_fixed + samples * self.forward_each

    def backward(self, samples: float) -> Seconds:
        """Seconds of each node's backward pass over a micro-batch."""
        return self.backward_fixed + samples * self.backward_each

    def scaled(self, forward: Seconds | float, backward: Seconds | float, source: str) -> Costs:
        """The costs with the nodes' forward and backward passes multiplied by a factor, or each by its own."""
        return Costs(
            self.forward_fixed * forward,
            self.forward_each * forward,
            self.backward_fixed * backward,
            self.backward_each * backward,
            self.action_seconds,
            source,
        )


@dataclass(frozen=True)
class Machine:
    """What estimates assume of one rank: about one core of a present-day x86 processor under TensorFlow.

    `node_seconds` is the overhead of one node's pass, whatever its size.
    """

    flops_per_second: float = 40e9
    bytes_per_second: float = 6e9
    node_seconds: float = 30e-6
    action_seconds: float = 500e-6


def estimated(graph: Graph, machine: Machine | None = None) -> Costs:
    """Costs from the work that the kind of a layer means: arithmetic, and bytes through memory.

    Good enough to cut a model of usual layers evenly; the shares are better than the seconds. Channels are taken to be
    the last axis.
    """
    machine = machine or Machine()
    work = [_work(graph, node) for node in graph.nodes]
    each = np.array([flops / machine.flops_per_second + size / machine.bytes_per_second for flops, size in work])
    fixed = np.full(len(work), machine.node_seconds)
    # The backward pass computes two products where the forward pass computes one: by the inputs and by the weights.
    return Costs(fixed, each, 2 * fixed, 2 * each, machine.action_seconds, "estimated")


def flops_per_sample(graph: Graph) -> float:
    """The arithmetic of one sample's forward pass, multiplications and additions counted apart."""
    return sum(_work(graph, node)[0] for node in graph.nodes)


def by_signature(graph: Graph, cost: Callable[[Node], Any]) -> list[Any]:
    """A value for each node, asked for once per signature: nodes of equal signature cost the same."""
    known: dict[str, Any] = {}
    for node in graph.nodes:
        if node.signature not in known:
            known[node.signature] = cost(node)
    return [known[node.signature] for node in graph.nodes]


def _work(graph: Graph, node: Node) -> tuple[float, float]:
    """Floating-point operations and bytes through memory of one sample's forward pass."""
    inputs, outputs = ([graph.tensors[index] for index in side] for side in (node.inputs, node.outputs))
    size = sum(tensor.bytes_per_sample for tensor in (*inputs, *outputs))
    elements = sum(math.prod(tensor.shape) for tensor in outputs)
    if node.kind in _PRODUCTS or node.kind in _TRANSPOSED:
        side = outputs if node.kind in _PRODUCTS else inputs
        return 2.0 * node.parameters * max((math.prod(tensor.shape[:-1]) for tensor in side), default=1), size
    if node.kind in _ATTENTION:
        positions, width = math.prod(outputs[0].shape[:-1]), outputs[0].shape[-1]
        keys = max(math.prod(tensor.shape[:-1]) for tensor in inputs)
        return 2.0 * node.parameters * positions + 4.0 * positions * keys * width, size
    return float(elements), size


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

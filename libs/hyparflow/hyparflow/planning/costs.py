"""The costs of nodes in seconds and bytes.

Seconds are divided into a fixed part and a part that grows with the samples of a micro-batch. Bytes are those of
weights and related values, and of activations between forward and backward.
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
#: Layers whose work is a product with their weights at every position of their output.
_PRODUCTS = (
    "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D",
    "Dense", "EinsumDense",
)  # fmt: skip
#: Layers whose work is a product with their weights at every position of their input.
_TRANSPOSED = (
    "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "LSTM", "GRU", "SimpleRNN", "ConvLSTM2D",
)  # fmt: skip
_ATTENTION = ("MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")


@dataclass(frozen=True)
class Costs:
    """The costs of a graph's nodes on one rank. A pass of a node over n samples takes fixed + n * each seconds.

    The arrays have one value per node. `action_seconds` is the cost of a stage's pass in addition to its nodes.
    """

    forward_fixed: Seconds
    forward_each: Seconds
    backward_fixed: Seconds
    backward_each: Seconds
    action_seconds: float = 0.0
    source: str = "given"

    def forward(self, samples: float) -> Seconds:
        """Return the seconds of each node's forward pass over a micro-batch."""
        return self.forward_fixed + samples * self.forward_each

    def backward(self, samples: float) -> Seconds:
        """Return the seconds of each node's backward pass over a micro-batch."""
        return self.backward_fixed + samples * self.backward_each

    def scaled(self, forward: Seconds | float, backward: Seconds | float, source: str) -> Costs:
        """Return the costs with forward and backward passes multiplied by a factor, for all nodes or each.

        Args:
            forward: The factor or factors of forward passes.
            backward: The factor or factors of backward passes.
            source: The source of the costs, for display.
        """
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
    """The assumptions of estimates about one rank, roughly a core of a current x86 processor under TensorFlow.

    `node_seconds` is the overhead of a node's pass, whatever its size.
    """

    flops_per_second: float = 40e9
    bytes_per_second: float = 6e9
    node_seconds: float = 30e-6
    action_seconds: float = 500e-6


def estimated(graph: Graph, machine: Machine | None = None) -> Costs:
    """Estimate costs from the arithmetic and memory traffic of each kind of layer.

    This is good enough to divide a model of common layers evenly; the ratios are better than the absolute times.
    Channels are assumed to be the last axis.
    """
    machine = machine or Machine()
    work = [_work(graph, node) for node in graph.nodes]
    each = np.array([flops / machine.flops_per_second + size / machine.bytes_per_second for flops, size in work])
    fixed = np.full(len(work), machine.node_seconds)
    # The backward pass computes two products for each of the forward pass: by the inputs and by the weights.
    return Costs(fixed, each, 2 * fixed, 2 * each, machine.action_seconds, "estimated")


def flops_per_sample(graph: Graph) -> float:
    """Return the arithmetic of one sample's forward pass, with multiplications and additions counted separately."""
    return sum(_work(graph, node)[0] for node in graph.nodes)


def by_signature(graph: Graph, cost: Callable[[Node], Any]) -> list[Any]:
    """Return a value for each node, computed once per signature, because nodes of equal signature have equal costs."""
    known: dict[str, Any] = {}
    for node in graph.nodes:
        if node.signature not in known:
            known[node.signature] = cost(node)
    return [known[node.signature] for node in graph.nodes]


def _work(graph: Graph, node: Node) -> tuple[float, float]:
    """Return floating-point operations and bytes of memory traffic of one sample's forward pass."""
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
    """The memory of a rank besides activations, as multiples of its weights.

    `copies`: the weights, their gradients, and one more per slot of the optimizer (SGD with momentum 1, Adam 2;
    `use_ema` adds 1).
    """

    copies: float = 4.0
    limit: int | None = None  # bytes of one rank


def held_bytes(graph: Graph, node: int) -> int:
    """Return the bytes that a node keeps for its backward pass of one sample: its outputs."""
    return sum(graph.tensors[tensor].bytes_per_sample for tensor in graph.nodes[node].outputs)


def received_bytes(graph: Graph, stage: Stage) -> int:
    """Return the bytes of one sample that a stage receives, from other stages or as the model's inputs."""
    return sum(graph.tensors[tensor].bytes_per_sample for tensor in stage.receives)


def activation_bytes(graph: Graph, stage: Stage, samples: int) -> int:
    """Return the bytes that a stage keeps for a micro-batch: all outputs, or only received values if it recomputes."""
    received = received_bytes(graph, stage)
    return samples * (received if stage.recompute else received + sum(held_bytes(graph, node) for node in stage.nodes))


def working_bytes(graph: Graph, stage: Stage, samples: int) -> int:
    """Return the bytes that a stage needs during a pass: all activations of the micro-batch, unless it keeps them."""
    if stage.sends and not stage.recompute:
        return 0
    return samples * sum(held_bytes(graph, node) for node in stage.nodes)


def peak_bytes(actions: Sequence[Action], stages: Sequence[Stage], memory: Memory) -> int:
    """Return the maximum bytes of one partition in a step.

    Args:
        actions: The actions of the partition.
        stages: All stages of the model.
        memory: The memory besides activations.
    """
    owned = {(action.stage, action.pipeline) for action in actions}  # under GEMS, a partition has two stages
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

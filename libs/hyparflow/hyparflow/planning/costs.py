"""What each node costs, forward and backward, as seconds that do and do not grow with the samples of a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Node

    Seconds = np.ndarray[Any, np.dtype[np.float64]]


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

"""A model as a graph of calls: plain, immutable values. Importing this module imports neither Keras nor TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Bytes of one element. Other dtypes end with their width (float32, int64).
_BYTES = {"bfloat16": 2, "bool": 1}


def bytes_of(dtype: str) -> int:
    """Return the bytes of one element of a Keras dtype."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return max(1, int(digits) // 8) if digits.isdigit() else 1


@dataclass(frozen=True)
class Tensor:
    """A value between nodes.

    ``shape`` excludes the batch axis. ``producer`` is a node, None for an input of the model. ``consumers`` are nodes
    in topological order, without duplicates.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    producer: int | None
    consumers: tuple[int, ...]

    @property
    def bytes_per_sample(self) -> int:
        """The bytes of one sample."""
        return math.prod(self.shape) * bytes_of(self.dtype)

    @property
    def differentiable(self) -> bool:
        """True if its gradient returns to its producer: a floating-point tensor that a node computes.

        A stage that receives such a tensor always returns a gradient, with zeros if nothing depends on it.
        """
        return self.producer is not None and "float" in self.dtype


@dataclass(frozen=True)
class Node:
    """One call of an operation.

    ``name`` is unique: "conv2d_3", "conv2d_3:1" for the second call of the layer, "encoder/conv2d" inside a nested
    model. ``layer`` is the path of the layer (or operation), which all its nodes share. ``inputs`` and ``outputs`` are
    tensors. ``variables`` are the names of the layer's variables in ``variables_of`` (trainable ones first),
    ``parameters`` is the number of trainable elements. Two nodes with equal ``signature`` have equal costs.
    """

    index: int
    name: str
    kind: str
    layer: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: tuple[str, ...]
    parameters: int
    signature: str


@dataclass(frozen=True)
class Graph:
    """A whole model. ``nodes`` are in topological order, in which Keras itself runs them.

    ``inputs`` and ``outputs`` are tensors, in the model's flattened order; a tensor can be an output twice, and an
    input can be an output. ``fingerprint`` is equal for models of equal structure, whatever their weights. ``bound``:
    groups of nodes that must be on one stage, because they call a layer whose state changes with each call.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fingerprint: str
    bound: tuple[tuple[int, ...], ...] = ()

"""A model as a graph of calls: plain, immutable values. Importing this imports neither Keras nor TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Bytes of one element. What is not named here has its width at its end (float32, int64) or is one byte (bool).
_BYTES = {"bfloat16": 2, "bool": 1}


def bytes_of(dtype: str) -> int:
    """The bytes of one element of a dtype by its Keras name."""
    if dtype in _BYTES:
        return _BYTES[dtype]
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return max(1, int(digits) // 8) if digits.isdigit() else 1


@dataclass(frozen=True)
class Tensor:
    """A value between nodes.

    ``shape`` is without the batch axis. ``producer`` is a node, None for an input of the model.
    ``consumers`` are nodes in topological order, each once.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    producer: int | None
    consumers: tuple[int, ...]

    @property
    def bytes_per_sample(self) -> int:
        """The bytes that one sample of it takes."""
        return math.prod(self.shape) * bytes_of(self.dtype)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient of it goes back to its producer: floating point, and made by a node.

        Where a stage receives such a tensor it always returns a gradient, zeros where nothing depends on it.
        """
        return self.producer is not None and "float" in self.dtype


@dataclass(frozen=True)
class Node:
    """One call of an operation.

    ``name`` is unique: "conv2d_3", "conv2d_3:1" for the second call of the layer, "encoder/conv2d" inside a nested
    model. ``layer`` is the path of the layer (or operation), which its nodes share. ``inputs`` and ``outputs`` are
    tensors. ``variables`` are the names that ``variables_of`` gives to the layer's variables (trainable ones first),
    ``parameters`` the number of trainable elements. Two nodes with equal ``signature`` cost the same.
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
    """A whole model. ``nodes`` are in topological order, the order in which Keras itself runs them.

    ``inputs`` and ``outputs`` are tensors, in the model's flattened order; a tensor may be an output twice, and an
    input may be an output. ``fingerprint`` is equal for models of equal structure, whatever their weights. ``bound``:
    groups of nodes that one stage must have: the calls of a layer whose state advances call by call.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fingerprint: str
    bound: tuple[tuple[int, ...], ...] = ()

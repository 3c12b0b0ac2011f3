"""Division of images among ranks: the rows of each part, and the rows that convolutions need of other parts.

Each part has consecutive rows of every divided tensor (batch, rows, columns, channels). Convolutions and poolings at
the edge of a part need rows of its neighbours, its halo; with few rows, also of parts that are farther away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hyparflow.graph.calls import Call, Calls
    from hyparflow.graph.types import Graph, Node, Tensor

#: Attributes of these layers that are numbers, or arrays as large as an image.
_FACTORS = ("scale", "offset", "alpha", "negative_slope", "max_value", "threshold")
#: Layers that compute each row from the rows around it.
WINDOWED = ("Conv2D", "DepthwiseConv2D", "SeparableConv2D", "MaxPooling2D", "AveragePooling2D")
#: Layers and operators that compute each element from the elements at the same place.
_ELEMENTWISE = (
    "Activation", "ReLU", "LeakyReLU", "ELU", "Rescaling", "Identity", "Add", "Subtract", "Multiply", "Average",
    "Maximum", "Minimum", "Concatenate",
)  # fmt: skip


def rows_of(height: int, parts: int, part: int) -> range:
    """Return the rows of a part. They depend on the height only, so tensors that are added have equal parts."""
    return range(part * height // parts, (part + 1) * height // parts)


@dataclass(frozen=True)
class Window:
    """The rows or columns that an output position is computed from.

    Output position i reads ``size`` positions of the input, ``dilation`` apart, from i * stride - before on. Positions
    outside the input are padding.
    """

    size: int
    stride: int
    dilation: int
    before: int

    @classmethod
    def of(cls, size: int, stride: int, dilation: int, *, padding: str, extent: int) -> Window:
        """Return the window of a layer over an input of ``extent`` positions."""
        reach = (size - 1) * dilation + 1
        missing = (-(-extent // stride) - 1) * stride + reach - extent if padding == "same" else 0
        return cls(size, stride, dilation, max(missing, 0) // 2)

    def positions(self, outputs: range) -> range:
        """Return the input positions, including padding, that these outputs are computed from."""
        first = outputs.start * self.stride - self.before
        last = (outputs.stop - 1) * self.stride - self.before + (self.size - 1) * self.dilation
        return range(first, last + 1)


@dataclass(frozen=True)
class Halo:
    """The rows of a tensor of ``height`` rows that each part needs; ``needs`` can exceed the tensor at both ends."""

    height: int
    needs: tuple[range, ...]

    @classmethod
    def of_window(cls, height: int, outputs: int, window: Window, parts: int) -> Halo:
        """Return the rows that each part needs for its rows of the output.

        Rows after the last window, fewer than the stride, change nothing; a part's own ones need not be cut off.
        """
        needs = []
        for part in range(parts):
            need, own = window.positions(rows_of(outputs, parts, part)), rows_of(height, parts, part)
            spare = max(0, min(window.stride - 1, own.stop - need.stop))
            needs.append(range(need.start, need.stop + spare))
        return cls(height, tuple(needs))

    @classmethod
    def of_whole(cls, height: int, parts: int) -> Halo:
        """Return the need of all parts for all rows."""
        return cls(height, (range(height),) * parts)

    def sources(self, part: int) -> tuple[tuple[int, range], ...]:
        """Return the owners of the rows that a part needs, and these rows, from the top; padding is left out."""
        need = self.needs[part]
        parts = len(self.needs)
        found = ((owner, _common(need, rows_of(self.height, parts, owner))) for owner in range(parts))
        return tuple((owner, rows) for owner, rows in found if rows)

    def receivers(self, part: int) -> tuple[tuple[int, range], ...]:
        """Return the other parts that need rows of this one, and these rows."""
        others = (other for other in range(len(self.needs)) if other != part)
        return tuple((other, rows) for other in others for owner, rows in self.sources(other) if owner == part)

    def padding(self, part: int) -> tuple[int, int]:
        """Return the rows of padding above and below the rows that a part needs."""
        need = self.needs[part]
        return max(0, min(0, need.stop) - need.start), max(0, need.stop - max(self.height, need.start))

    @property
    def is_local(self) -> bool:
        """True if every part needs exactly its own rows, with or without padding."""
        parts = range(len(self.needs))
        return all(self.sources(part) == ((part, rows_of(self.height, len(parts), part)),) for part in parts)


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


@dataclass(frozen=True)
class Division:
    """The tensors whose rows are divided among the parts, and the nodes that each part computes for its rows only.

    ``sums``: nodes that average whole images; each part adds up its rows, and all parts have the result. Each part
    computes all other nodes as a whole.
    """

    parts: int
    tensors: frozenset[int]
    nodes: frozenset[int]
    sums: frozenset[int]

    def local(self, graph: Graph, part: int) -> Graph:
        """Return the graph with the shapes that tensors have on a part."""

        def shape(tensor: Tensor) -> tuple[int, ...]:
            if tensor.index not in self.tensors:
                return tensor.shape
            return (len(rows_of(tensor.shape[0], self.parts, part)), *tensor.shape[1:])

        return replace(graph, tensors=tuple(replace(each, shape=shape(each)) for each in graph.tensors))


def divide(calls: Calls, parts: int) -> Division:
    """Return the division of a model's images: from the inputs on, as far as its layers can be divided.

    A layer divides if every part has a row of its inputs and outputs. Outputs of the model are never divided.
    """
    graph = calls.graph
    last = set(graph.outputs)
    tensors = {index for index in graph.inputs if _divides(graph.tensors[index], parts)} - last
    nodes, sums = set(), set()
    for node, call in zip(graph.nodes, calls.calls, strict=True):
        if not node.inputs or not tensors.issuperset(node.inputs):
            continue
        if averages_images(node, call, graph):
            sums.add(node.index)
        elif (
            _is_local(node, call, graph)
            and not last.intersection(node.outputs)
            and all(_divides(graph.tensors[index], parts) for index in node.outputs)
        ):
            nodes.add(node.index)
            tensors.update(node.outputs)
    return Division(parts, frozenset(tensors), frozenset(nodes), frozenset(sums))


def windows_of(operation: Any, shape: tuple[int, ...]) -> tuple[Window, Window]:
    """Return the windows over rows and columns of a convolution or pooling of images of this shape."""
    sizes = operation.kernel_size if hasattr(operation, "kernel_size") else operation.pool_size
    strides = _pair(operation.strides)
    dilations = _pair(getattr(operation, "dilation_rate", 1))
    rows, columns = (
        Window.of(size, stride, dilation, padding=operation.padding, extent=extent)
        for size, stride, dilation, extent in zip(_pair(sizes), strides, dilations, shape, strict=False)
    )
    return rows, columns


def averages_images(node: Node, call: Call, graph: Graph) -> bool:
    """Return whether a node averages each channel over the whole image."""
    if getattr(call.operation, "data_format", "") != "channels_last" or not _is_of_keras(call.operation):
        return False
    if node.kind == "AveragePooling2D":
        return (
            call.operation.padding == "valid"
            and _pair(call.operation.pool_size) == graph.tensors[node.inputs[0]].shape[:2]
        )
    return node.kind == "GlobalAveragePooling2D"


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _divides(tensor: Tensor, parts: int) -> bool:
    return len(tensor.shape) == 3 and tensor.shape[0] >= parts and "float" in tensor.dtype


def _is_local(node: Node, call: Call, graph: Graph) -> bool:
    """Return whether a node computes rows of its outputs from rows of its inputs."""
    operation = call.operation
    if call.input_masks or any(mask is not None for mask in call.output_masks):
        return False
    if getattr(operation, "activity_regularizer", None) is not None or not _is_plain(call):
        return False
    shapes = [graph.tensors[index].shape for index in (*node.inputs, *node.outputs)]
    if node.kind in WINDOWED:
        plain = not getattr(operation, "lora_enabled", False) and getattr(operation, "quantization_mode", None) is None
        return plain and operation.data_format == "channels_last"
    if node.kind == "BatchNormalization":
        return operation.axis in (-1, 3) and not (operation.renorm or operation.synchronized)
    # Concatenation along the rows changes their number.
    return node.kind in _ELEMENTWISE and len({shape[:2] for shape in shapes}) == 1


def _is_plain(call: Call) -> bool:
    """Return whether a call is that of Keras' own layer or operator, and computes each row in the same way."""
    import keras

    constants = keras.tree.flatten((call.arguments.args, call.arguments.kwargs))
    factors = [getattr(call.operation, name, None) for name in _FACTORS]
    return (
        _is_of_keras(call.operation)
        and _computes_elements(getattr(call.operation, "activation", None))
        and not any(_has_rows(each) for each in (*factors, *constants) if not isinstance(each, keras.KerasTensor))
    )


def _is_of_keras(operation: Any) -> bool:
    """Return False for layers of the user, which may have the name of a layer of Keras."""
    return type(operation).__module__.startswith("keras.")


def _computes_elements(activation: Any) -> bool:
    """Return whether an activation is one of Keras, all of which compute a place from its own channels; None is one.

    A function of the user's own may combine rows.
    """
    import keras

    return activation is None or getattr(keras.activations, getattr(activation, "__name__", ""), None) is activation


def _has_rows(value: Any) -> bool:
    """Return whether a number or array has a value for each row of an image."""
    return tuple(np.shape(value))[-3:-2] not in ((), (1,))

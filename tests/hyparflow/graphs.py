"""Graphs made by hand: planning needs neither Keras nor TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from hyparflow.graph.types import Graph, Node, Tensor


def graph(
    inputs: Sequence[Sequence[int]], *, parameters: int = 100, shape: tuple[int, ...] = (4, 4, 2), kind: str = "Conv2D"
) -> Graph:
    """A graph whose node i makes tensor i + 1 from the given tensors; tensor 0 is the model's input.

    What nobody takes is an output of the model.
    """
    count = len(inputs)
    consumers = [tuple(node for node in range(count) if tensor in inputs[node]) for tensor in range(count + 1)]
    tensors = tuple(
        Tensor(index, f"t{index}", shape, "float32", index - 1 if index else None, consumers[index])
        for index in range(count + 1)
    )
    nodes = tuple(
        Node(index, f"n{index}", kind, f"n{index}", tuple(taken), (index + 1,), (), parameters, f"{kind} of {len(taken)}")
        for index, taken in enumerate(inputs)
    )
    outputs = tuple(index for index in range(1, count + 1) if not consumers[index])
    return Graph("made", nodes, tensors, (0,), outputs, "made")


def chain(count: int, *, skip: int = 0, parameters: int = 100) -> Graph:
    """Nodes one after the other; with `skip` every skip-th takes the tensor of so many before as well."""
    taken = [
        [index, index - skip] if skip and index >= skip and index % skip == 0 else [index] for index in range(count)
    ]
    return graph(taken, parameters=parameters)

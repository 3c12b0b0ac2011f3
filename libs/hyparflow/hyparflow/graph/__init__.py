"""A Keras model as a graph of calls that can be cut into stages."""

from hyparflow.graph.types import Graph, Node, Tensor

__all__ = ["Graph", "Node", "Tensor"]

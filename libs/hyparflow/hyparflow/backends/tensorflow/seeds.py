"""Seed states of Dropout and similar layers: any partitioning draws the same numbers as sequential training.

Each call of Keras' ``SeedGenerator.next()`` adds one to a counter. If a forward pass of the whole model draws D times
from a generator, then micro-batch number n since the counter was c (in sequential order) starts at c + n * D.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hyparflow.backends.tensorflow.scope import Scope, distinct
from hyparflow.graph.calls import Calls, layers_in


class Seeds:
    """The seed generators of one stage's layers.

    ``draws``: per generator, draws of the whole model's forward pass; known after tracing for generators that only this
    stage has. ``offsets``: (generator, node) -> draws of the nodes before it, for generators that several stages share.
    """

    def __init__(self, calls: Calls, nodes: Sequence[int]) -> None:
        mine = set(nodes)
        holders: dict[int, list[int]] = {}
        self.generators = distinct(g for node in nodes for g in _generators(calls.calls[node].operation))
        for node, call in enumerate(calls.calls):
            for generator in _generators(call.operation):
                holders.setdefault(id(generator), []).append(node)
        self.draws = np.zeros(len(self.generators), np.int64)
        self.offsets: dict[int, dict[int, int]] = {}
        for index, generator in enumerate(self.generators):
            if not mine.issuperset(holders[id(generator)]):
                for node in holders[id(generator)]:
                    self.offsets.setdefault(node, {})[index] = int(self.draws[index])
                    self.draws[index] += _draws_of(calls, node, generator)
        self.shared = {index for offsets in self.offsets.values() for index in offsets}
        self._counters: Any = None

    @property
    def states(self) -> list[Any]:
        """The Keras variables of the generators."""
        return [generator.state for generator in self.generators]

    def before(self, node: int, scope: Scope, states: Sequence[Any]) -> None:
        """Set the shared generators to their state before this node in sequential training."""
        for index, offset in self.offsets.get(node, {}).items():
            scope.put(self.generators[index].state, states[index] + tf.constant([0, offset], states[index].dtype))

    def after(self, scope: Scope) -> None:
        """Record the number of draws from the generators that only this stage has."""
        for index, generator in enumerate(self.generators):
            if index not in self.shared:
                self.draws[index] = scope.counts[id(generator.state)]

    def start_step(self) -> None:
        """Read the current counters."""
        self._counters = np.array([state.numpy() for state in self.states], np.int64).reshape(-1, 2)

    def at(self, order: int) -> Any:
        """Return the states (generator, 2) at the micro-batch with this number in the step's sequential order."""
        states = self._counters.copy()
        states[:, 1] += order * self.draws
        return states

    def finish_step(self, total: int) -> None:
        """Set the counters to their values after ``total`` micro-batches."""
        for generator, state in zip(self.generators, self.at(total), strict=True):
            generator.state.assign(state)


def _generators(operation: Any) -> list[Any]:
    return distinct(generator for layer in layers_in(operation) for generator in layer._seed_generators)


def _draws_of(calls: Calls, node: int, generator: Any) -> int:
    """Count the draws of one call in training, by tracing it alone."""
    graph, call = calls.graph, calls.calls[node]
    counted: Mapping[int, int] = {}

    def trace() -> None:
        nonlocal counted
        tensors = [graph.tensors[index] for index in graph.nodes[node].inputs]
        values = {tensor.index: tf.compat.v1.placeholder(tensor.dtype, (1, *tensor.shape)) for tensor in tensors}
        variables = [(v, tf.compat.v1.placeholder(v.dtype, v.shape)) for v in call.operation.variables]
        with Scope(variables) as scope:
            scope.run(call, values, graph.nodes[node].outputs, training=True)
        counted = scope.counts

    tf.compat.v1.wrap_function(trace, [])
    return counted.get(id(generator.state), 0)

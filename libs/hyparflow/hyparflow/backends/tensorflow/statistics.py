"""Moving statistics of BatchNorm, gathered over a step and applied at its end.

One micro-batch changes a moving value M to a*M + b, where a is the momentum to the power of the layer's calls. Over the
m micro-batches of a step, that is a^m * M + sum of a^(m-1-i) * b_i. The sum can be gathered in any order and on several
ranks, and the result is the same as assigning after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hyparflow.backends import BatchNorm, Buffer, Place, Slot
from hyparflow.backends.tensorflow.scope import Scope, distinct
from hyparflow.errors import UnsupportedModel
from hyparflow.graph.calls import Calls, batch_norms


class Moving:
    """The BatchNorm layers of one stage whose variables have the same dtype.

    Flat arrays contain the means of all layers, then the variances of all layers.
    """

    def __init__(self, layers: Sequence[Any], names: Mapping[int, str], mode: BatchNorm) -> None:
        self.mode = mode
        self.layers = layers
        self.variables = [layer.moving_mean for layer in layers] + [layer.moving_variance for layer in layers]
        self.dtype = self.variables[0].dtype
        self.sizes = [int(variable.shape[0]) for variable in self.variables]
        offsets = np.cumsum([0, *self.sizes])
        self.slots = tuple(
            Slot(names[id(variable)], int(offset), size, (size,))
            for variable, offset, size in zip(self.variables, offsets, self.sizes, strict=False)
        )
        self.decay = np.ones(sum(self.sizes), self.dtype)
        self.gathered: Any = None
        self.value: Any = None
        values = [variable.value for variable in self.variables]
        self._read = tf.function(lambda: tf.concat(values, 0), autograph=False).get_concrete_function()
        self._assign = tf.function(self._assign_all)

    def feed(self, scope: Scope, flat: Any) -> None:
        """Set the layers' moving values in the scope from a flat tensor."""
        for variable, value in zip(self.variables, tf.split(flat, self.sizes), strict=True):
            scope.put(variable, value)

    def added(self, scope: Scope, flat: Any) -> Any:
        """Return the flat b of the micro-batch after the layers have run in the scope, and set the decay a.

        A layer assigns a*M + b. For most layers, the scope has moments instead, and b is a share of them.
        """
        parts = [self._part(scope, position) for position in range(len(self.variables))]
        values, shares, decays, included = zip(*parts, strict=True)
        self.decay = self._spread(decays)
        added = tf.concat(values, 0)
        if any(share != 1 for share in shares):
            added *= self._spread(shares)
        if any(included):
            added -= self._spread(included) * flat
        return added

    def _part(self, scope: Scope, position: int) -> tuple[Any, float, float, float]:
        """Return a value, its share in b, the variable's a, and the weight of M in that share."""
        variable, layer = self.variables[position], self.layers[position % len(self.layers)]
        seen = scope.moments.get(id(layer))
        if seen is None:
            decay = layer.momentum ** scope.counts[id(variable)]
            return scope.get_current_value(variable), 1.0, decay, decay
        if position < len(self.layers):
            return seen.mean, seen.share_of_mean, seen.momentum, 0.0
        return seen.variance, seen.share_of_variance, seen.momentum, 0.0

    def _spread(self, by_variable: Sequence[float]) -> Any:
        """Repeat numbers by variable over a flat array."""
        return np.repeat(np.array(by_variable, self.dtype), self.sizes)

    def read(self) -> None:
        """Read the moving values, which do not change during a step."""
        self.value = self._read()

    def start_step(self) -> None:
        """Start to gather."""
        self.read()
        self.gathered = np.zeros(sum(self.sizes), self.dtype)

    def gather(self, place: Place, added: Any) -> None:
        """Add the b of a micro-batch."""
        if self.mode == "deferred":
            self.gathered += self._moments(added)
        else:
            self.gathered += self.decay ** (place.micro_batches - 1 - place.micro_batch) * added

    def buffer(self) -> Buffer:
        """Return the buffer that the engine sums over owners and replicas."""
        return Buffer(self.gathered, self.slots)

    def finish_step(self, place: Place) -> None:
        """Apply the gathered and summed contributions."""
        before, gathered = self.value.numpy(), self.gathered
        if self.mode == "deferred":
            mean, square = np.split(gathered / place.shares, 2)
            whole = np.concatenate([mean, square - mean * mean])
            after = self.decay * before + (1 - self.decay) * whole
        else:
            summed = place.replicas * place.spatial if self.mode == "synchronised" else 1
            after = self.decay**place.micro_batches * before + gathered / summed
        self._assign(tf.constant(after, self.dtype))

    def _moments(self, added: Any) -> Any:
        """Return mean and mean square of a micro-batch from its b = (1 - a) * (mean, variance)."""
        mean, variance = np.split(np.divide(added, 1 - self.decay, out=added.copy(), where=self.decay != 1), 2)
        return np.concatenate([mean, variance + mean * mean])

    def _assign_all(self, flat: Any) -> None:
        for variable, value in zip(self.variables, tf.split(flat, self.sizes), strict=True):
            variable.value.assign(value)


def moving_of(calls: Calls, nodes: Sequence[int], names: Mapping[int, str], mode: BatchNorm) -> tuple[Moving, ...]:
    """Group the BatchNorm layers of a stage by dtype.

    Layers that do not train or that renormalise are left out.

    Args:
        calls: The calls of the model.
        nodes: The nodes of the stage.
        names: id of a variable -> its name.
        mode: The update of moving statistics.
    """
    layers = _layers(calls, nodes)
    dtypes = dict.fromkeys(layer.moving_mean.dtype for layer in layers)
    return tuple(Moving([x for x in layers if x.moving_mean.dtype == dtype], names, mode) for dtype in dtypes)


def check_together(calls: Calls, nodes: Sequence[int], others: Sequence[int]) -> None:
    """Raise UnsupportedModel if calls of one BatchNorm are on several stages, because its updates are ordered."""
    layers = {id(layer) for layer in _layers(calls, nodes)}
    for node in others:
        if layers & {id(layer) for layer in batch_norms(calls.calls[node].operation)}:
            raise UnsupportedModel(
                f"calls of the BatchNormalization in '{calls.graph.nodes[node].name}' are on several stages, but "
                "its moving statistics change with each call: put all calls of a shared BatchNormalization on one stage"
            )


def _layers(calls: Calls, nodes: Sequence[int]) -> list[Any]:
    return distinct(layer for node in nodes for layer in batch_norms(calls.calls[node].operation))

"""Running nodes with given values for their variables, and seeing what they assign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from keras import StatelessScope, tree
from keras.src.backend import get_keras_mask, set_keras_mask

from hyparflow.backends.tensorflow import batch_norm
from hyparflow.graph.from_keras import Call, layers_in


class Scope(StatelessScope):
    """A StatelessScope in which every assignment is counted; losses of layers are collected.

    ``values``: Keras variable -> tensor, for all variables that the nodes read. ``moments``: id of a
    BatchNormalization that was called once -> what it saw, which is in no variable yet. ``rows``: how many rows of a
    micro-batch are samples; None: all.
    """

    def __init__(self, values: Iterable[tuple[Any, Any]], rows: Any = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.assigned: dict[int, Any] = {}
        self.counts: Counter[int] = Counter()
        self.moments: dict[int, batch_norm.Moments] = {}
        self._rows = rows
        for variable, value in values:
            self.put(variable, value)

    def put(self, variable: Any, value: Any) -> None:
        """Let a variable have this value from now on."""
        self.state_mapping[id(variable)] = value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keras' own hook: a variable was assigned."""
        self.assigned[id(update[0])] = update[0]
        self.counts[id(update[0])] += 1
        super().add_update(update)

    def run(self, call: Call, values: dict[int, Any], outputs: tuple[int, ...], training: bool) -> None:
        """Run one node on ``values`` (tensor of the graph -> TensorFlow tensor), and put its outputs there."""
        for tensor in call.inputs.values():
            mask = call.input_masks.get(tensor)
            if mask is None or get_keras_mask(values[tensor]) is None:
                set_keras_mask(values[tensor], None if mask is None else values[mask])
        arguments, keywords = call.arguments_for(
            {symbol: values[tensor] for symbol, tensor in call.inputs.items()}, training
        )
        again = [layer for layer in layers_in(call.operation) if id(layer) in self.moments]
        for layer in again:
            batch_norm.assign(layer, self.moments.pop(id(layer)))
        if batch_norm.fits(call.operation, arguments, keywords):
            made = [self._normalised(call.operation, *arguments)]
        else:
            made = tree.flatten(call.operation(*arguments, **keywords))
            regularizer = getattr(call.operation, "activity_regularizer", None)
            if self._rows is not None and regularizer is not None:
                self._regularize(regularizer, made)
        masks = [get_keras_mask(x) for x, mask in zip(made, call.output_masks, strict=True) if mask is not None]
        values.update(zip(outputs, [*made, *masks], strict=True))

    def _regularize(self, regularizer: Any, made: list[Any]) -> None:
        """Let the activity regularizer of the layer that was called last see samples only."""
        del self.losses[-sum(tf.is_tensor(each) for each in made) :]
        for value in made:
            if tf.is_tensor(value):
                loss = regularizer(value[: self._rows])
                self.add_loss(tf.math.divide_no_nan(loss, tf.cast(self._rows, loss.dtype)))

    def _normalised(self, layer: Any, value: Any) -> Any:
        """The output of a BatchNormalization; the order of several calls matters to its moving statistics."""
        made, seen = batch_norm.fused(layer, value)
        if id(layer.moving_mean) in self.assigned:
            batch_norm.assign(layer, seen)
        else:
            self.moments[id(layer)] = seen
        return made


def distinct(things: Iterable[Any]) -> list[Any]:
    """Each object once, in order of first appearance."""
    return list({id(thing): thing for thing in things}.values())


def reads(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Each variable's value, read once in the graph that is being built."""
    return {name: variable.value.value() for name, variable in variables.items()}

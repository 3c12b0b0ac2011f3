"""Execution of nodes with given values of their variables, and recording of assignments.

BatchNormalization is computed by one kernel. Keras composes it from means, squared differences and products, each of
which passes over the whole tensor and takes a quarter of a ResNet's time on CPUs. TensorFlow's kernel
(FusedBatchNormV3) needs only a few passes. The results are equal except for rounding in float32. The kernel does not
support float64, for which Keras' implementation is used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import StatelessScope, tree
from keras.src.backend import get_keras_mask, set_keras_mask

from hyparflow.graph.calls import Call, layers_in

#: Dtypes that Keras normalises in float32.
_DTYPES = ("float32", "float16", "bfloat16")


class Scope(StatelessScope):
    """A StatelessScope that counts assignments and collects the losses of layers.

    ``values``: Keras variable -> tensor, for all variables that the nodes read. ``moments``: id of a BatchNormalization
    that was called once -> its statistics, which are not yet in a variable. ``rows``: number of rows of a micro-batch
    that are samples; None: all.
    """

    def __init__(self, values: Iterable[tuple[Any, Any]], rows: Any = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.assigned: dict[int, Any] = {}
        self.counts: Counter[int] = Counter()
        self.moments: dict[int, Moments] = {}
        self._rows = rows
        for variable, value in values:
            self.put(variable, value)

    def put(self, variable: Any, value: Any) -> None:
        """Set the value of a variable."""
        self.state_mapping[id(variable)] = value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Record an assignment; Keras calls this."""
        self.assigned[id(update[0])] = update[0]
        self.counts[id(update[0])] += 1
        super().add_update(update)

    def run(self, call: Call, values: dict[int, Any], outputs: tuple[int, ...], training: bool) -> None:
        """Run one node on ``values`` (tensor of the graph -> TensorFlow tensor), and add its outputs to them.

        Args:
            call: The call of the node.
            values: Tensor of the graph -> TensorFlow tensor.
            outputs: The tensors of the graph that the node computes, then their masks.
            training: Keras' own flag.
        """
        for tensor in call.inputs.values():
            mask = call.input_masks.get(tensor)
            if mask is None or get_keras_mask(values[tensor]) is None:
                set_keras_mask(values[tensor], None if mask is None else values[mask])
        arguments, keywords = call.arguments_for(
            {symbol: values[tensor] for symbol, tensor in call.inputs.items()}, training
        )
        again = [layer for layer in layers_in(call.operation) if id(layer) in self.moments]
        for layer in again:
            assign_moments(layer, self.moments.pop(id(layer)))
        if can_fuse(call.operation, arguments, keywords):
            made = [self._normalised(call.operation, *arguments)]
        else:
            made = tree.flatten(call.operation(*arguments, **keywords))
            regularizer = getattr(call.operation, "activity_regularizer", None)
            if self._rows is not None and regularizer is not None:
                self._regularize(regularizer, made)
        masks = [get_keras_mask(x) for x, mask in zip(made, call.output_masks, strict=True) if mask is not None]
        values.update(zip(outputs, [*made, *masks], strict=True))

    def _regularize(self, regularizer: Any, made: list[Any]) -> None:
        """Restrict the activity regularizer of the layer that was called last to samples."""
        del self.losses[-sum(tf.is_tensor(each) for each in made) :]
        for value in made:
            if tf.is_tensor(value):
                loss = regularizer(value[: self._rows])
                self.add_loss(tf.math.divide_no_nan(loss, tf.cast(self._rows, loss.dtype)))

    def _normalised(self, layer: Any, value: Any) -> Any:
        """Compute a BatchNormalization. The order of several calls matters to its moving statistics."""
        made, seen = fused_batch_norm(layer, value)
        if id(layer.moving_mean) in self.assigned:
            assign_moments(layer, seen)
        else:
            self.moments[id(layer)] = seen
        return made


def distinct(things: Iterable[Any]) -> list[Any]:
    """Return each object once, in order of first appearance."""
    return list({id(thing): thing for thing in things}.values())


def reads(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Read each variable's value once, in the graph that is being built."""
    return {name: variable.value.value() for name, variable in variables.items()}


def can_fuse(operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Return whether ``fused_batch_norm`` can compute a call: training, images with channels last, no mask."""
    if type(operation) is not keras.layers.BatchNormalization or len(arguments) != 1:
        return False
    value = arguments[0]
    plain = not (operation.renorm or operation.synchronized or operation.activity_regularizer)
    return (
        plain
        and keywords["training"]
        and operation.trainable
        and keywords.get("mask") is None
        and get_keras_mask(value) is None
        and len(value.shape) == 4
        and operation.axis in (-1, 3)
        and operation.variable_dtype == "float32"
        and operation.compute_dtype in _DTYPES
        and value.dtype.name == operation.compute_dtype
        and math.prod(value.shape[:3]) > 1
    )


@dataclass(frozen=True)
class Moments:
    """The statistics of one call: mean and variance by channel, and their momentum in the moving statistics.

    ``variance`` is the kernel's estimate for the population that the samples were drawn from; Keras uses that of the
    ``samples`` themselves.
    """

    mean: Any
    variance: Any
    momentum: float
    samples: int

    @property
    def share_of_mean(self) -> float:
        """The weight of ``mean`` in the moving mean."""
        return 1.0 - self.momentum

    @property
    def share_of_variance(self) -> float:
        """The weight of ``variance`` in the moving variance."""
        return (1.0 - self.momentum) * (self.samples - 1) / self.samples


def fused_batch_norm(layer: keras.layers.BatchNormalization, value: Any) -> tuple[Any, Moments]:
    """Return the layer's output, and the statistics for its moving averages."""
    channels = [value.shape[-1]]
    with tf.name_scope(layer.name):
        made, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=tf.cast(value, "float32"),
            scale=layer.gamma.value if layer.scale else tf.ones(channels),
            offset=layer.beta.value if layer.center else tf.zeros(channels),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=layer.epsilon,
            is_training=True,
        )
        seen = Moments(mean, variance, layer.momentum, math.prod(value.shape[:3]))
        return tf.cast(made, layer.compute_dtype), seen


def assign_moments(layer: keras.layers.BatchNormalization, seen: Moments) -> None:
    """Advance the layer's moving statistics, as Keras does within its call."""
    for variable, moment, share in (
        (layer.moving_mean, seen.mean, seen.share_of_mean),
        (layer.moving_variance, seen.variance, seen.share_of_variance),
    ):
        variable.assign(variable.value * seen.momentum + moment * share)

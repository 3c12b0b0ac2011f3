"""BatchNormalization in one kernel.

Keras composes it of means, squared differences and products, each of which passes over the whole tensor: a quarter of a
ResNet's time on CPUs. TensorFlow's own kernel (FusedBatchNormV3) passes over it a few times. What both compute is the
same but for rounding in float32; in float64, which the kernel does not know, Keras' way stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask

#: What Keras normalises in float32, whatever comes in.
_DTYPES = ("float32", "float16", "bfloat16")


def fits(operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a call is one that ``fused`` computes: training, of images with channels last, without a mask."""
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


def fused(layer: keras.layers.BatchNormalization, value: Any) -> Any:
    """The layer's output; its moving statistics are assigned."""
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
        # The kernel gives the variance of the population that the samples were drawn from, Keras takes theirs.
        samples = math.prod(value.shape[:3])
        variance *= (samples - 1) / samples
        for variable, seen in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
            variable.assign(variable.value * layer.momentum + seen * (1.0 - layer.momentum))
        return tf.cast(made, layer.compute_dtype)

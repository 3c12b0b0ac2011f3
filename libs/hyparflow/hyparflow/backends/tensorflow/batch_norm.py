"""BatchNormalization in one kernel.

Keras composes it of means, squared differences and products, each of which passes over the whole tensor: a quarter of a
ResNet's time on CPUs. TensorFlow's own kernel (FusedBatchNormV3) passes over it a few times. What both compute is the
same but for rounding in float32; in float64, which the kernel does not know, Keras' way stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Moments:
    """What one call saw: mean and variance by channel, and the momentum with which they enter the moving ones.

    ``variance``: of the population that the samples were drawn from, as the kernel estimates it; Keras takes that of
    the ``samples`` themselves.
    """

    mean: Any
    variance: Any
    momentum: float
    samples: int

    @property
    def share_of_mean(self) -> float:
        """What the moving mean takes of ``mean``."""
        return 1.0 - self.momentum

    @property
    def share_of_variance(self) -> float:
        """What the moving variance takes of ``variance``."""
        return (1.0 - self.momentum) * (self.samples - 1) / self.samples


def fused(layer: keras.layers.BatchNormalization, value: Any) -> tuple[Any, Moments]:
    """The layer's output, and what its moving statistics have to be told."""
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


def assign(layer: keras.layers.BatchNormalization, seen: Moments) -> None:
    """Advance the layer's moving statistics, as Keras does within its call."""
    for variable, moment, share in (
        (layer.moving_mean, seen.mean, seen.share_of_mean),
        (layer.moving_variance, seen.variance, seen.share_of_variance),
    ):
        variable.assign(variable.value * seen.momentum + moment * share)

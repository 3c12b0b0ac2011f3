"""ResNets for images of 32 x 32, or larger ones.

Version 1: He et al., Deep Residual Learning for Image Recognition (2015), section 4.2: 6n+2 layers, two convolutions
of 3x3 in each of 3n blocks, 16, 32, 64 filters. Version 2: He et al., Identity Mappings in Deep Residual Networks
(2016): 9n+2 layers, normalisation and ReLU before each convolution, blocks of 1x1, 3x3, 1x1. Widths of version 2,
biases, initial values and L2 regularisation are those of the example ``cifar10_resnet`` of Keras, with which
HyPar-Flow was measured too: its ResNet-1001 has 30.5 million parameters where that of the paper has 10.2.
"""

from __future__ import annotations

from typing import Any

from hidl_workloads.hyparflow.models import CLASSES, SIZE

_GROUPS = 3
_FILTERS = 16  # of the first convolution


def blocks(version: int, depth: int) -> int:
    """The residual blocks of each of the three groups; raises ``ValueError`` where no such depth exists."""
    each = {1: 6, 2: 9}[version]
    if depth < each + 2 or (depth - 2) % each:
        near = max(1, round((depth - 2) / each)) * each + 2
        raise ValueError(
            f"invalid depth {depth}: a ResNet of version {version} has {each}n+2 layers; "
            f"the nearest valid depth is {near}"
        )
    return (depth - 2) // each


def resnet(version: int, depth: int, image_size: int = SIZE, weight_decay: float = 1e-4) -> Any:
    """The Keras model, ``resnet{depth}v{version}``. Raises ``ValueError`` where no such depth exists."""
    import keras

    number = blocks(version, depth)
    images = keras.Input((image_size, image_size, 3), name="images")
    convolution = _convolutions(weight_decay)
    x = _normalised(convolution(images, _FILTERS, 3))
    group = _first_version if version == 1 else _second_version
    for index in range(_GROUPS):
        x = group(x, index, number, convolution)
    if version == 2:  # its blocks end without
        x = _normalised(x)
    x = keras.layers.AveragePooling2D(x.shape[1])(x)
    x = keras.layers.Flatten()(x)
    logits = keras.layers.Dense(CLASSES, kernel_initializer="he_normal", name="logits")(x)
    return keras.Model(images, logits, name=f"resnet{depth}v{version}")


def _first_version(x: Any, group: int, number: int, convolution: Any) -> Any:
    from keras import layers

    filters = _FILTERS * 2**group
    for block in range(number):
        smaller = group > 0 and block == 0
        y = _normalised(convolution(x, filters, 3, strides=2 if smaller else 1))
        y = layers.BatchNormalization()(convolution(y, filters, 3))
        if smaller:  # the shortcut must have the same shape
            x = convolution(x, filters, 1, strides=2)
        x = layers.ReLU()(layers.Add()([x, y]))
    return x


def _second_version(x: Any, group: int, number: int, convolution: Any) -> Any:
    from keras import layers

    width = _FILTERS if group == 0 else _FILTERS * 2 ** (group + 1)
    filters = _FILTERS * 2 ** (group + 2)
    for block in range(number):
        strides = 2 if group > 0 and block == 0 else 1
        before = x if group == 0 and block == 0 else _normalised(x)  # the first values are already normalised
        y = convolution(before, width, 1, strides=strides)
        y = convolution(_normalised(y), width, 3)
        y = convolution(_normalised(y), filters, 1)
        if block == 0:
            x = convolution(x, filters, 1, strides=strides)
        x = layers.Add()([x, y])
    return x


def _normalised(x: Any) -> Any:
    from keras import layers

    return layers.ReLU()(layers.BatchNormalization()(x))


def _convolutions(weight_decay: float) -> Any:
    import keras

    regularizer = keras.regularizers.L2(weight_decay) if weight_decay else None

    def convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        return keras.layers.Conv2D(
            filters,
            size,
            strides=strides,
            padding="same",
            kernel_initializer="he_normal",
            kernel_regularizer=regularizer,
        )(x)

    return convolution

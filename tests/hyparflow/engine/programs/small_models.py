"""Small models in float64, the same on every rank, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers


def residual() -> keras.Model:
    """ResNet-20 with BatchNorm for images of 8 x 8, few filters; compiled with momentum."""
    keras.utils.clear_session()  # the names of layers count from the start
    keras.utils.set_random_seed(20)

    def convolution(x: Any, filters: int, strides: int, size: int = 3) -> Any:
        return layers.Conv2D(filters, size, strides, "same", use_bias=False, kernel_regularizer="l2")(x)

    images = keras.Input((8, 8, 3))
    x = layers.ReLU()(layers.BatchNormalization()(convolution(images, 4, 1)))
    for group in range(3):
        for block in range(3):
            filters, strides = 4 * 2**group, 2 if group and not block else 1
            y = layers.ReLU()(layers.BatchNormalization()(convolution(x, filters, strides)))
            y = layers.BatchNormalization()(convolution(y, filters, 1))
            if strides == 2:
                x = convolution(x, filters, 2, size=1)
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, layers.Dense(5)(x), name="residual")
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def branched() -> keras.Model:
    """2 inputs (one of integers), 2 outputs, long skips, a layer used three times, operators, Dropout, L2."""
    keras.utils.clear_session()  # the names of layers count from the start
    keras.utils.set_random_seed(21)
    numbers = keras.Input((6,), name="numbers")
    words = keras.Input((3,), dtype="int32", name="words")
    shared = layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01), name="shared")
    first = layers.Dense(8, "tanh", name="first")(numbers)
    h = layers.Dropout(0.3)(shared(first))
    g = layers.Flatten()(layers.Embedding(11, 4)(words + 1))
    g = shared(layers.Dense(8, "tanh")(g))
    h = h + 0.5 * g
    early = layers.Dense(2, name="early")(layers.Dropout(0.2)(h))
    for _ in range(3):
        h = layers.LayerNormalization()(layers.Dense(8, "tanh")(h) + h)
    h = layers.Concatenate()([shared(h), first, g])
    late = layers.Dense(4, name="late", kernel_regularizer="l2")(layers.Dropout(0.1)(h))
    model = keras.Model([numbers, words], [early, late], name="branched")
    model.compile(
        keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5),
        ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)],
        loss_weights=[0.7, 0.3],
    )
    return model


Arrays = tuple[np.ndarray, ...]


def residual_data(step: int, rows: int) -> tuple[Arrays, Arrays, tuple[np.ndarray | None, ...]]:
    """Inputs, targets and sample weights of one step."""
    random = np.random.default_rng(step)
    return (random.normal(size=(rows, 8, 8, 3)),), (random.integers(0, 5, (rows,)),), (None,)


def branched_data(step: int, rows: int) -> tuple[Arrays, Arrays, tuple[np.ndarray | None, ...]]:
    """Inputs, targets and sample weights of one step."""
    random = np.random.default_rng(step)
    inputs = (random.normal(size=(rows, 6)), random.integers(0, 10, (rows, 3), dtype=np.int32))
    targets = (random.normal(size=(rows, 2)), random.integers(0, 4, (rows,)))
    return inputs, targets, (random.uniform(0.5, 2, rows), None)


MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[..., Any]]] = {
    "residual": (residual, residual_data),
    "branched": (branched, branched_data),
}

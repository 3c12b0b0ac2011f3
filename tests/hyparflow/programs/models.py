"""Small models that have what makes cutting hard."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers


def tangled() -> Any:
    """2 inputs, 2 outputs, long skips, a shared layer, a nested model called twice, Dropout, L2, an operator."""
    image = keras.Input((8, 8, 3), name="image")
    vector = keras.Input((6,), name="vector")
    shared = layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.01), name="shared")
    inside = keras.Input((8,))
    nested = keras.Model(inside, layers.Dropout(0.3)(layers.Dense(8, activation="tanh")(inside)) + inside, name="block")
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer=keras.regularizers.L2(0.02))(image)
    x = layers.BatchNormalization(momentum=0.8)(x)
    skip = layers.ReLU()(x)
    x = layers.SpatialDropout2D(0.2)(skip)
    x = layers.Conv2D(4, 3, padding="same", activity_regularizer=keras.regularizers.L2(0.03))(x)
    x = layers.BatchNormalization()(x) + skip
    x = layers.GlobalAveragePooling2D()(x)
    v = layers.Dropout(0.5)(layers.Dense(8, activation="relu")(vector))
    first = shared(v)
    x = nested(layers.Dense(8)(x))
    x = shared(x) + 0.5 * first
    x = nested(x)
    x = layers.Concatenate()([x, first, layers.Flatten()(skip)])
    early = layers.Dense(1, name="early")(first)
    late = layers.Dense(3, name="late")(x)
    return keras.Model([image, vector], [early, late], name="tangled")


def tangled_data(rows: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Inputs, targets and sample weights for it."""
    random = np.random.default_rng(5)
    inputs = [random.normal(size=(rows, 8, 8, 3)), random.normal(size=(rows, 6))]
    targets = [random.normal(size=(rows, 1)), random.integers(0, 3, size=(rows, 1))]
    return inputs, targets, [random.uniform(0.5, 1.5, size=rows) for _ in targets]


def compile_tangled(model: Any) -> None:
    """Two losses with weights. No Adam: it divides a gradient that is zero but for rounding by itself."""
    late = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {"early": "mse", "late": late},
        loss_weights={"early": 0.5, "late": 2.0},
    )


def resnet20() -> Any:
    """ResNet-20 v1 for 16 x 16 pixels, with a quarter of the filters."""
    image = keras.Input((16, 16, 3))
    x = _unit(image, 4, 1)
    for group, filters in enumerate((4, 8, 16)):
        for block in range(3):
            strides = 2 if group and not block else 1
            y = _unit(_unit(x, filters, strides), filters, 1, activate=False)
            if strides == 2:
                x = layers.Conv2D(filters, 1, strides=2)(x)
            x = layers.ReLU()(layers.Add()([x, y]))
    model = keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
    return model


def resnet20_data(rows: int) -> tuple[list[Any], list[Any]]:
    """Images and classes."""
    random = np.random.default_rng(6)
    return [random.normal(size=(rows, 16, 16, 3))], [random.integers(0, 10, size=(rows, 1))]


def _unit(x: Any, filters: int, strides: int, activate: bool = True) -> Any:
    x = layers.Conv2D(filters, 3, strides=strides, padding="same", kernel_regularizer="l2")(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(x) if activate else x

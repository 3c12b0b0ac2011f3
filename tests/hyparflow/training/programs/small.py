"""A small model with two inputs, two outputs, Dropout and L2, and data for it; float64."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

keras.config.set_floatx("float64")

BATCH = 16
STEPS = 5
COUNT = BATCH * STEPS


def build() -> Any:
    """The model; layers are named, so that it is the same one however many a process builds."""
    u, v = keras.Input((6,), name="u"), keras.Input((4,), name="v")
    h = keras.layers.Dense(8, activation="relu", kernel_regularizer="l2", name="first")(u)
    h = keras.layers.Dropout(0.25, name="drop")(h)
    g = keras.layers.Dense(8, activation="tanh", name="second")(v)
    h = keras.layers.Add(name="add")([h, g])
    a = keras.layers.Dense(3, activation="softmax", name="a")(h)
    b = keras.layers.Dense(1, name="b")(keras.layers.Concatenate(name="join")([h, u]))
    return keras.Model([u, v], [a, b], name="small")


class Largest(keras.metrics.Metric):
    """A metric whose states do not add up."""

    def __init__(self, name: str = "largest", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.value + 0.0  # not the variable itself: Keras would put it into the history, and go on changing it


def compiled(model: Any, learning_rate: float = 0.05) -> Any:
    """Compile it as all cases have it."""
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9, global_clipnorm=1.0),
        loss={"a": "sparse_categorical_crossentropy", "b": "mse"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["accuracy"], "b": ["mae", Largest()]},
        weighted_metrics={"b": ["mse"]},
    )
    return model


def data(count: int = COUNT) -> tuple[list[Any], list[Any]]:
    """Inputs and targets."""
    draw = np.random.default_rng(3)
    x = [draw.normal(size=(count, 6)), draw.normal(size=(count, 4))]
    return x, [draw.integers(0, 3, size=count), draw.normal(size=(count, 1))]

"""Trainings and evaluations beside plain Keras on the same batches: ``as_keras.py DIRECTORY CASE...``, found.json.

Each case has differences from Keras (histories, weights, evaluations), for 2 partitions and for 2 replicas.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
import tensorflow as tf
from beside import COMM, far, raised
from keras import layers, losses, tree

DRAW = np.random.default_rng(11)
#: Samples and the size of a batch: the last batch is smaller, and no number of parts divides it.
COUNT, BATCH = 29, 8
HOW = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
LAYOUTS = {"partitions": (2, 1, 4), "replicas": (1, 2, 2), "whole": (2, 1, 1)}
X, WEIGHTS = DRAW.normal(size=(COUNT, 6)), DRAW.uniform(0.1, 3.0, size=COUNT)
CLASSES = DRAW.integers(0, 3, size=COUNT)
ONE_HOT, VALUES = np.eye(3)[CLASSES], DRAW.normal(size=(COUNT, 2))
#: Sequences of very different lengths, filled up with zeros at their ends.
WORDS = DRAW.integers(1, 7, size=(COUNT, 6)) * (np.arange(6) < DRAW.integers(1, 7, size=(COUNT, 1)))
TAGS = DRAW.integers(0, 3, size=(COUNT, 6))


def dense(activation: str | None = None, units: int = 3, activity: Any = None) -> Callable[[], Any]:
    """Two layers."""

    def build() -> Any:
        x = keras.Input((6,), name="x")
        h = layers.Dense(8, activation="tanh", name="first", activity_regularizer=activity, kernel_regularizer="l2")(x)
        return keras.Model(x, layers.Dense(units, activation=activation, name="last")(h), name="dense")

    return build


def tagger() -> Any:
    """A class for each word; zeros are no words."""
    x = keras.Input((6,), dtype="int32", name="words")
    h = layers.LSTM(5, return_sequences=True, name="lstm")(layers.Embedding(7, 4, mask_zero=True, name="embed")(x))
    return keras.Model(x, layers.Dense(3, activation="softmax", name="tag")(h), name="tagger")


def twins() -> Any:
    """Two outputs with a loss each."""
    x = keras.Input((6,), name="x")
    h = layers.Dense(8, activation="tanh", name="first")(x)
    return keras.Model(x, [layers.Dense(2, name="one")(h), layers.Dense(1, name="other")(h)], name="twins")


class Dense(keras.optimizers.Adam):
    """Adam with one gradient for each row of a table, as in Keras on other backends: see ``Embedding`` in the docs."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([tf.convert_to_tensor(each) for each in grads], trainable_variables)


def masked_by_values() -> Any:
    """A mask that follows from what a layer has computed."""
    x = keras.Input((6, 2), name="x")
    h = layers.Masking(name="masking")(layers.Dense(3, activation="relu", name="first")(x))
    return keras.Model(x, layers.Dense(1, name="last")(h), name="masked")


def beside(
    build: Callable[[], Any],
    data: tuple[Any, Any],
    weights: Any = None,
    *,
    loss: Any,
    metrics: Callable[[], dict[str, Any]] = dict,
    layouts: tuple[str, ...] = ("partitions", "replicas"),
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(0.05),
) -> dict[str, float]:
    """The largest differences of evaluations, histories and weights."""

    def ready(model: Any) -> Any:
        model.compile(optimizer(), loss() if callable(loss) else loss, **metrics())
        return model

    def numbers(model: Any) -> tuple[list[Any], dict[str, Any], list[Any]]:
        evaluated = model.evaluate(*data, batch_size=BATCH, sample_weight=weights, verbose=0)
        held_out = tuple(tree.map_structure(lambda each: each[:11], part) for part in data)
        history = model.fit(*data, sample_weight=weights, validation_data=held_out, **HOW).history
        return [evaluated], dict(sorted(history.items())), model.get_weights()

    keras.utils.set_random_seed(3)
    plain = build()
    start = plain.get_weights()
    expected = numbers(ready(plain))
    found = {}
    for name in layouts:
        partitions, replicas, micro_batches = LAYOUTS[name]
        with hyparflow.Strategy(partitions, replicas, micro_batches, costs="estimated").scope():
            model = build()
            model.set_weights(start)
        own = numbers(ready(model))
        assert list(own[1]) == list(expected[1]), (own, expected)
        found[f"{name}: evaluation"] = far(own[0], expected[0])
        found[f"{name}: history"] = far(own[1].values(), expected[1].values())
        found[f"{name}: weights"] = far(own[2], expected[2])
    return found


def accuracies() -> dict[str, Any]:
    """Plain and weighted."""
    kind = keras.metrics.SparseCategoricalAccuracy
    return {"metrics": [kind("accuracy")], "weighted_metrics": [kind("weighted")]}


def crossentropies() -> dict[str, Any]:
    """Metrics that take the logits of a softmax or sigmoid."""
    kinds = keras.metrics.BinaryCrossentropy, keras.metrics.CategoricalCrossentropy, keras.metrics.CategoricalAccuracy
    return {"metrics": [kind() for kind in kinds]}


def masks() -> dict[str, Callable[[], Any]]:
    """Masks in losses and metrics."""
    sparse, sums = "sparse_categorical_crossentropy", lambda: losses.SparseCategoricalCrossentropy(reduction="sum")
    of_words = DRAW.uniform(0.1, 3.0, size=(COUNT, 6))
    images = DRAW.normal(size=(COUNT, 6, 2)), DRAW.normal(size=(COUNT, 6, 1))
    return {
        "masks": partial(beside, tagger, (WORDS, TAGS), loss=sparse, metrics=accuracies),
        "masks, weights of samples": partial(
            beside, tagger, (WORDS, TAGS), WEIGHTS[:, None], loss=sparse, metrics=accuracies
        ),
        "masks, weights of words": partial(beside, tagger, (WORDS, TAGS), of_words, loss=sparse, metrics=accuracies),
        "masks, a sum": partial(beside, tagger, (WORDS, TAGS), of_words, loss=sums, metrics=accuracies),
        "masks, one micro-batch": partial(
            beside, masked_by_values, images, WEIGHTS[:, None], loss="mse", layouts=("whole",)
        ),
        "an embedding": partial(beside, tagger, (WORDS, TAGS), loss=sparse, optimizer=partial(Dense, 0.01)),
        "an ignored class": partial(
            beside, dense("softmax"), (X, CLASSES), loss=lambda: losses.SparseCategoricalCrossentropy(ignore_class=1)
        ),
    }


def reductions() -> dict[str, Callable[[], Any]]:
    """Weights, sums, means over weights, activity regularizers; metrics of outputs with logits."""
    sparse, squares = "sparse_categorical_crossentropy", losses.MeanSquaredError
    by_weights, values = "mean_with_sample_weight", (X, VALUES)
    return {
        "weights": partial(beside, dense("softmax"), (X, CLASSES), WEIGHTS, loss=sparse, metrics=accuracies),
        "activity": partial(beside, dense(activity=keras.regularizers.L2(0.1)), (X, ONE_HOT), WEIGHTS, loss="mse"),
        "sum": partial(beside, dense(units=2), values, WEIGHTS, loss=lambda: squares(reduction="sum")),
        "mean over weights": partial(
            beside, dense(units=2), values, WEIGHTS, loss=lambda: squares(reduction=by_weights)
        ),
        "two outputs": partial(beside, twins, (X, [VALUES, VALUES[:, :1]]), loss=lambda: ["mse", "mae"]),
        "softmax": partial(
            beside, dense("softmax"), (X, ONE_HOT), loss="categorical_crossentropy", metrics=crossentropies
        ),
        "sigmoid": partial(beside, dense("sigmoid"), (X, ONE_HOT), loss="binary_crossentropy", metrics=crossentropies),
    }


def wholes() -> dict[str, Callable[[], Any]]:
    """Losses of the batch as a whole."""
    found: dict[str, Callable[[], Any]] = {}
    for kind, targets in ((losses.Circle, CLASSES), (losses.Dice, ONE_HOT), (losses.Tversky, ONE_HOT)):
        name, data = kind.__name__, (X, targets)
        found[name] = partial(beside, dense("softmax"), data, loss=kind, layouts=("whole",))
        for layout in ("partitions", "replicas"):
            refused = partial(beside, dense("softmax"), data, loss=kind, layouts=(layout,))
            found[f"{name}, refused, {layout}"] = partial(raised, refused)
    found["Dice of samples"] = partial(beside, dense("softmax"), (X, ONE_HOT), loss=lambda: losses.Dice(axis=1))
    return found


def main() -> None:
    cases = masks() | reductions() | wholes()
    found = {name: cases[name]() for name in sorted(sys.argv[2:])}
    if COMM.rank == 0:
        (Path(sys.argv[1]) / "found.json").write_text(json.dumps(found))


main()

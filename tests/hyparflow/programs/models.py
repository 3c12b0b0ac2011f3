"""Small models that have what makes cutting hard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    return keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def compile_resnet20(model: Any) -> None:
    """One loss."""
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")


def resnet20_data(rows: int) -> tuple[list[Any], list[Any]]:
    """Images and classes."""
    random = np.random.default_rng(6)
    return [random.normal(size=(rows, 16, 16, 3))], [random.integers(0, 10, size=(rows, 1))]


def _unit(x: Any, filters: int, strides: int, activate: bool = True) -> Any:
    x = layers.Conv2D(filters, 3, strides=strides, padding="same", kernel_regularizer="l2")(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(x) if activate else x


def random(plan: Sequence[tuple[str, int, int]]) -> Any:
    """A graph of vectors of 3: each entry is what is called, and on which of the tensors so far (modulo their number).

    Every tensor that nothing consumes is an output.
    """
    shared = layers.Dense(3, kernel_regularizer="l2", name="shared")
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "dense": lambda a, _: layers.Dense(3, activation="tanh")(a),
        "shared": lambda a, _: shared(a),
        "dropout": lambda a, _: layers.Dropout(0.4)(a),
        "norm": lambda a, _: layers.BatchNormalization()(a),
        "half": lambda a, _: 0.5 * a,
        "add": lambda a, b: layers.Add()([a, b]),
        "times": lambda a, b: a * b,
    }
    tensors = [keras.Input((3,))]
    leaves: list[int] = []
    for kind, first, second in plan:
        one, other = first % len(tensors), second % len(tensors)
        used = {one, other} if kind in ("add", "times") else {one}
        leaves = [*(leaf for leaf in leaves if leaf not in used), len(tensors)]
        tensors.append(calls[kind](tensors[one], tensors[other]))
    return keras.Model(tensors[0], [tensors[leaf] for leaf in leaves])


def penalised() -> Any:
    """Regularizers of every kind, equal and unequal ones, on small weights and on more than are summed at once."""
    narrow = vector = x = keras.Input((3,))
    for regularizer in ("l2", "l1", "l1l2", "l2", keras.regularizers.L2(0.3), _product):
        x = layers.Dense(3, kernel_regularizer=regularizer, bias_regularizer="l1")(x)
    for width in (400, 400, 600, 600):
        narrow = layers.Dense(width, "tanh", kernel_regularizer="l2")(narrow)
    return keras.Model(vector, layers.Dense(3, kernel_regularizer="l1")(narrow) + x)


def _product(kernel: Any) -> Any:
    """A regularizer that is no sum over elements."""
    return 1e-3 * keras.ops.prod(kernel)


def penalised_data(rows: int) -> tuple[list[Any], list[Any]]:
    """Vectors."""
    random = np.random.default_rng(11)
    return [random.normal(size=(rows, 3))], [random.normal(size=(rows, 3))]


def compile_penalised(model: Any) -> None:
    """Plain."""
    model.compile(keras.optimizers.SGD(0.001), "mse")


def nested() -> Any:
    """A nested model and a Sequential, one called twice, and a mask."""
    words = keras.Input((5,), dtype="int32", name="words")
    x = layers.LSTM(3)(layers.Embedding(10, 4, mask_zero=True)(words))
    inside = keras.Input((3,))
    encoder = keras.Model(inside, layers.Dense(3, name="inner")(inside), name="encoder")
    head = keras.Sequential([keras.Input((3,)), layers.Dense(3, name="inner"), layers.ReLU()], name="head")
    return keras.Model(words, head(encoder(encoder(x))) * 2.0)


def nested_data(rows: int) -> tuple[list[Any], list[Any]]:
    """Words of which some are padding, and vectors."""
    random = np.random.default_rng(9)
    return [random.integers(0, 10, size=(rows, 5)).astype("int32")], [random.normal(size=(rows, 3))]


def compile_nested(model: Any) -> None:
    """Plain."""
    model.compile(keras.optimizers.SGD(0.5), "mse")


def attending(rate: float | None = None, *, returned: bool = False) -> Any:
    """Two blocks of attention over masked words, of which Keras removes the mask of what attention reads.

    With ``rate`` the first attention reads what Dropout returns. ``returned``: it reads an output of the model.
    """
    words = keras.Input((6,), dtype="int32", name="words")
    x = first = layers.Embedding(20, 8, mask_zero=True, name="embedding")(words)
    for number in range(2):
        read = layers.Dropout(rate)(x) if rate is not None else x
        attended = layers.MultiHeadAttention(2, 4, name=f"attention_{number}")(read, read)
        x = layers.LayerNormalization()(layers.Add(name=f"residual_{number}")([x, attended]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(16, "relu")(x))]))
    y = layers.Dense(1)(layers.GlobalAveragePooling1D(name="pool")(x))
    return keras.Model(words, [y, first] if returned else y, name="attending")


def masked_inside() -> Any:
    """A layer that returns what an Embedding inside it has masked, and an LSTM that reads the mask."""

    class Tokens(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.inner = layers.Embedding(20, 8, mask_zero=True)
            self.inner.build(shape)

        def call(self, words: Any) -> Any:
            return self.inner(words)

    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Dense(8)(Tokens(name="tokens")(words))
    return keras.Model(words, layers.Dense(1)(layers.LSTM(8, name="lstm")(x)))


def attending_data(rows: int) -> tuple[Any, Any]:
    """Words, of which some are masked, and targets."""
    draw = np.random.default_rng(3)
    words = draw.integers(1, 20, (rows, 6)) * (np.arange(6) < draw.integers(1, 7, (rows, 1)))
    return words, draw.normal(size=(rows, 1))


def dropped_before_attention() -> Any:
    """Attention reads what Dropout returns."""
    return attending(0.3)


def masked_output() -> Any:
    """Attention reads an output of the model."""
    return attending(returned=True)


def subclassed() -> Any:
    """A model whose graph nobody can see."""

    class Opaque(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    return Opaque(name="opaque")


def unbuilt() -> Any:
    """A Sequential that does not know its input."""
    return keras.Sequential([layers.Dense(3)], name="unbuilt")


def open_shape() -> Any:
    """Sequences of any length."""
    sequence = keras.Input((None, 4), name="sequence")
    return keras.Model(sequence, layers.Dense(2)(sequence))

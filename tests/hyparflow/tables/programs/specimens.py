"""A small model, data and settings for one name of a table: what both plain Keras and two partitions train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from kinds import made, names

ROWS = 12
DRAW = np.random.default_rng(11)


@dataclass
class Specimen:
    """``build`` makes the model, ``compiling`` and ``fitting`` the arguments; stage 2 begins at layer ``cut``."""

    build: Callable[[], Any]
    compiling: Callable[[], dict[str, Any]]
    x: Any
    y: Any
    cut: str | None = "cut"
    micro_batches: int = 1
    fitting: Callable[[], dict[str, Any]] = field(default=dict)
    batch: int = 4
    eager: bool = False  # whether plain Keras runs uncompiled


#: Inputs that a layer may want, without the batch: the first that it takes is used.
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((6,),), ((4, 3),), ((6, 6, 3),), ((4, 4, 4, 2),), ((4, 5, 5, 2),), ((3, 4, 4, 4, 2),), ((4, 3), (4, 3)),
    ((6,), (6,)), ((64,),), ((4, 2, 3), (4, 2, 3)),
)  # fmt: skip
OF_DIMENSIONS = {"1D": SHAPES[1], "2D": SHAPES[2], "3D": SHAPES[3]}
IMAGE = ((8, 8, 3),)
#: Layers whose input is whole numbers below 4, or strings.
COUNTED = ("CategoryEncoding", "Embedding", "Hashing", "HashedCrossing", "IntegerLookup", "ReversibleEmbedding")
STRINGS = ("StringLookup", "TextVectorization")
#: Which of SHAPES, where the first that Keras takes is not the usual one.
WANTED = {
    "HashedCrossing": ((1,), (1,)),
    "TextVectorization": ((1,),),
    "STFTSpectrogram": ((64,),),
    "MelSpectrogram": ((64,),),
    "GroupNormalization": ((6,),),
    "EinsumDense": ((6,),),
}


def _classes(count: int = ROWS) -> Any:
    return DRAW.integers(0, 3, (count, 1))


def _dense(out: int = 3, last: str = "softmax", first: dict[str, Any] | None = None, second: Any = None) -> Any:
    x = keras.Input((6,), name="x")
    h = keras.layers.Dense(5, activation="tanh", name="first", **(first or {}))(x)
    return keras.Model(x, keras.layers.Dense(out, activation=last, name="cut", **(second or first or {}))(h))


def _of_layer(name: str, shapes: Any) -> Callable[[], Any]:
    """Dense layers (none before whole numbers), the layer, and an output in the second stage."""
    before = name not in (*COUNTED, *STRINGS)
    dtype = "string" if name in STRINGS else "int64"

    def build() -> Any:
        tensors = [keras.Input(shape, name=f"x{i}", dtype=None if before else dtype) for i, shape in enumerate(shapes)]
        inputs = list(tensors)
        if before:
            tensors = [keras.layers.Dense(s[-1], activation="sigmoid", name=f"before{i}")(t)
                       for i, (s, t) in enumerate(zip(shapes, tensors, strict=True))]  # fmt: skip
        layer = made("layers", name)
        arguments = tensors[0] if len(tensors) == 1 else tensors
        two = name in ("MultiHeadAttention", "GroupQueryAttention")
        y = layer(*tensors[:2]) if two else layer(arguments)
        first = keras.tree.flatten(y)[0]
        flat = keras.layers.Flatten(name="flat")(keras.layers.Identity(name="cut")(first))
        if flat.dtype != keras.config.floatx():
            flat = keras.layers.Rescaling(0.25, name="as_floats")(flat)
        return keras.Model(inputs, keras.layers.Dense(2, name="last")(flat))

    return build


def _layer(name: str) -> Specimen:
    options = (WANTED[name],) if name in WANTED else SHAPES
    if name[-2:] in OF_DIMENSIONS:
        options = (OF_DIMENSIONS[name[-2:]], *SHAPES)
    if "image_preprocessing" in names("layers")[name].__module__:
        options = (IMAGE,)
    errors = []
    for shapes in options:
        build = _of_layer(name, shapes)
        try:
            build()
        except Exception as error:
            errors.append(error)
            continue
        if name in STRINGS:
            column = np.asarray([["a"], ["b"]] * (ROWS // 2))
            xs = [tf.constant(np.repeat(column, shape[0], axis=1)) for shape in shapes]
        elif name in COUNTED:
            xs = [DRAW.integers(0, 4, (ROWS, *shape)) for shape in shapes]
        else:
            xs = [DRAW.uniform(0.05, 0.95, (ROWS, *shape)) for shape in shapes]
        y = DRAW.normal(size=(ROWS, 2))
        return Specimen(build, lambda: {"optimizer": keras.optimizers.SGD(0.05), "loss": "mse"},
                        xs[0] if len(xs) == 1 else xs, y)  # fmt: skip
    raise errors[0]


def _scored(module: str, name: str) -> Specimen:
    """A loss, or a metric."""
    sparse = name.startswith("Sparse") or name in ("Circle", "CategoricalGeneralizedCrossEntropy", "IoU", "MeanIoU")
    classes = _classes()
    x, y = DRAW.normal(size=(ROWS, 6)), classes if sparse else np.eye(3)[classes[:, 0]]
    if name == "CategoricalGeneralizedCrossEntropy":
        y = classes[:, 0]  # it takes no column of labels

    def build() -> Any:
        return _dense(last="sigmoid" if name.startswith("Binary") else "softmax")

    if name == "CTC":
        y = DRAW.integers(1, 3, (ROWS, 2))

        def build() -> Any:
            inputs = keras.Input((6,), name="x")
            h = keras.layers.Dense(15, activation="tanh", name="first")(inputs)
            return keras.Model(inputs, keras.layers.Reshape((5, 3))(keras.layers.Dense(15, name="cut")(h)))

    def compiling() -> dict[str, Any]:
        one = made(module, name)
        how = {"loss": one} if module == "losses" else {"metrics": [one]}
        return {"optimizer": keras.optimizers.SGD(0.05), "loss": "mse" if not sparse or module == "losses" else
                "sparse_categorical_crossentropy", **how}  # fmt: skip

    micro_batches = 1 if module == "losses" and name in OF_A_BATCH else 2
    return Specimen(build, compiling, x, y, micro_batches=micro_batches)


def _optimizer(name: str) -> Specimen:
    def compiling() -> dict[str, Any]:
        return {"optimizer": made("optimizers", name), "loss": "mse"}

    return Specimen(lambda: _dense(last="linear"), compiling, DRAW.normal(size=(ROWS, 6)),
                    DRAW.normal(size=(ROWS, 3)), micro_batches=2, fitting=lambda: {"epochs": 3},
                    eager=name in COMPILED_OTHERWISE)  # fmt: skip


def _of_weights(module: str, name: str) -> Specimen:
    """A regularizer, a constraint or an initializer: of kernels of both stages."""
    word = {"regularizers": "kernel_regularizer", "constraints": "kernel_constraint"}.get(module, "kernel_initializer")

    def build() -> Any:
        return _dense(4, "linear", {word: made(module, name)}, {word: made(module, name)})

    return Specimen(build, lambda: {"optimizer": keras.optimizers.SGD(0.5), "loss": "mse"},
                    DRAW.normal(size=(ROWS, 6)), DRAW.normal(size=(ROWS, 4)), micro_batches=2)  # fmt: skip


def _callback(name: str) -> Specimen:
    x, y = DRAW.normal(size=(ROWS, 6)), DRAW.normal(size=(ROWS, 3))

    def fitting() -> dict[str, Any]:
        return {"epochs": 4, "validation_data": (x, y), "callbacks": [made("callbacks", name)]}

    def compiling() -> dict[str, Any]:
        average = {"use_ema": True} if name == "SwapEMAWeights" else {}
        return {"optimizer": keras.optimizers.SGD(0.05, **average), "loss": "mse"}

    return Specimen(lambda: _dense(last="linear"), compiling, x, y, fitting=fitting)


#: Optimizers that Keras itself trains differently in a compiled step, where slots made from weights begin at 0.
COMPILED_OTHERWISE = ("ScheduleFreeAdamW",)
#: Losses of a batch as a whole, not means over its samples: other numbers in other micro-batches.
OF_A_BATCH = ("Circle", "Dice", "Tversky")
#: The smallest sides of an image that Keras' applications may want.
SIDES = (32, 48, 71, 75, 96, 128, 139, 224, 331)
#: Of a batch. With two, networks whose last images have one pixel normalize two numbers to 1 and -1, whose order the
#: last bit decides.
IMAGES = 8


def _application(name: str) -> Specimen:
    function = names("applications")[name]

    def build_with(side: int) -> Any:
        return function(weights=None, classes=3, input_shape=(side, side, 3))

    side = None
    for side in SIDES:
        try:
            build_with(side)
        except ValueError:
            continue
        break
    chosen = side
    return Specimen(lambda: build_with(chosen),
                    lambda: {"optimizer": keras.optimizers.SGD(1e-3), "loss": "sparse_categorical_crossentropy"},
                    DRAW.uniform(0.0, 255.0, (IMAGES, chosen, chosen, 3)), DRAW.integers(0, 3, (IMAGES, 1)), cut=None,
                    batch=IMAGES, eager=True)  # fmt: skip


def specimen(module: str, name: str) -> Specimen:
    """For a name of a table."""
    if module == "layers":
        return _layer(name)
    if module in ("losses", "metrics"):
        return _scored(module, name)
    if module == "optimizers":
        return _optimizer(name)
    if module == "callbacks":
        return _callback(name)
    if module == "applications":
        return _application(name)
    return _of_weights(module, name)

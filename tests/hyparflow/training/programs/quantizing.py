"""Quantized models and LoRA under a strategy, beside plain Keras: found.json, from rank 0."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
from beside import COMM, HOW, X, Y, compiled, far, raised
from keras import layers

WORDS = np.random.default_rng(6).integers(0, 7, size=(32, 6))


def dense() -> Any:
    """Four layers that can be quantized."""
    keras.utils.set_random_seed(3)
    x = keras.Input((6,), name="x")
    h = layers.Dense(8, activation="tanh", name="first")(x)
    h = layers.Dense(8, activation="tanh", name="second")(h)
    return keras.Model(x, layers.Dense(1, name="last")(h), name="dense")


def embedding() -> Any:
    """The other layers with LoRA."""
    keras.utils.set_random_seed(3)
    x = keras.Input((6,), dtype="int32", name="words")
    h = layers.Embedding(7, 8, name="embed")(x)
    h = layers.Flatten(name="flat")(layers.EinsumDense("abc,cd->abd", (6, 8), name="einsum")(h))
    return keras.Model(x, layers.Dense(1, name="last")(h), name="embedding")


def with_lora(model: Any) -> Any:
    """Of rank 2, in all layers that can have it."""
    keras.utils.set_random_seed(4)
    for layer in model.layers:
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2)
    return model


def quantized(model: Any, mode: str) -> Any:
    """The model itself."""
    model.quantize(mode)
    return model


def strategy(micro_batches: int = 1) -> hyparflow.Strategy:
    """Two partitions."""
    return hyparflow.Strategy(partitions=2, micro_batches=micro_batches, costs="estimated")


def optimizer(**options: Any) -> Any:
    """One whose steps are the same for sums of gradients and for their terms: see ``Embedding`` in the docs."""
    return keras.optimizers.SGD(0.05, momentum=0.9, **options)


def numbers(model: Any, data: Any) -> list[Any]:
    """What a prediction, an evaluation and a fit give, and the weights that it leaves."""
    found = [model.predict(data, verbose=0), model.evaluate(data, Y, verbose=0)]
    return [*found, model.fit(data, Y, **HOW).history["loss"], *model.get_weights()]


def trained(make: Callable[[], Any], data: Any = X, micro_batches: int = 2, **options: Any) -> float:
    """How far a model that is made in the scope is from the same in one process."""
    expected = numbers(compiled(make(), optimizer(**options)), data)
    with strategy(micro_batches).scope():
        model = make()
    return far(numbers(compiled(model, optimizer(**options)), data), expected)


def loaded(file: Path) -> dict[str, float]:
    """A quantized model from a file."""
    plain = quantized(dense(), "int8")
    if COMM.rank == 0:
        plain.save(file)
    COMM.barrier()
    with strategy().scope():
        inside = keras.models.load_model(file)
        called = inside(X)
        predicted = inside.predict(X, verbose=0)  # by Keras itself: it is not compiled
    outside = keras.models.load_model(file)
    expected = plain.predict(X, verbose=0)
    found = {"called": far([called], [expected]), "not compiled": far([predicted], [expected])}
    wanted = numbers(compiled(plain, optimizer()), X)
    found["in the scope"] = far(numbers(compiled(inside, optimizer()), X), wanted)
    with strategy().scope():
        found["after the scope"] = far(numbers(compiled(outside, optimizer()), X), wanted)
    return found


def after_training(change: Callable[[Any], Any], again: bool) -> float:
    """A model that is changed when it has been trained, compiled ``again`` or not."""
    plain = compiled(dense(), optimizer())
    with strategy().scope():
        parts = compiled(dense(), optimizer())
    found = []
    for model in (parts, plain):
        model.fit(X, Y, **HOW)
        change(model)
        if again:
            compiled(model, optimizer())
        found.append([model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)])
        found[-1] += [model.fit(X, Y, **HOW).history["loss"], *model.get_weights()]
    return far(*found)


def main(root: Path, *names: str) -> None:
    """The cases that are named."""
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[], Any]] = {
        "int8": lambda: trained(lambda: quantized(dense(), "int8")),
        "int4": lambda: trained(lambda: quantized(dense(), "int4")),
        "LoRA": lambda: trained(lambda: with_lora(dense())),
        "LoRA, int8": lambda: trained(lambda: quantized(with_lora(dense()), "int8")),
        "int8, LoRA": lambda: trained(lambda: with_lora(quantized(embedding(), "int8")), WORDS),
        "LoRA of an embedding": lambda: trained(lambda: with_lora(embedding()), WORDS),
        "float8": lambda: trained(lambda: quantized(dense(), "float8"), micro_batches=1),
        "float8, clipped": lambda: trained(lambda: quantized(dense(), "float8"), micro_batches=1, global_clipnorm=0.01),
        "float8 in parts": lambda: raised(lambda: trained(lambda: quantized(dense(), "float8"))),
        "loaded": lambda: loaded(root / "int8.keras"),
        "quantized after a fit": lambda: after_training(lambda model: model.quantize("int8"), False),
        "LoRA after a fit": lambda: after_training(with_lora, True),
    }
    found = {name: cases[name]() for name in names}
    if COMM.rank == 0:
        (root / "found.json").write_text(json.dumps(found, indent=1))


main(Path(sys.argv[1]), *sys.argv[2:])

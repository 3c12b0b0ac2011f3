"""What a rank of ``benchmarks.plan_accuracy`` does: save a model, or train it by a plan and time the steps.

::

    mpiexec -n 1 python -m benchmarks.plan_accuracy_ranks save MODEL SIZE FILE
    mpiexec -n 2 python -m benchmarks.plan_accuracy_ranks train DIRECTORY BATCH

MODEL is one of Keras' applications, and SIZE the pixels of a side of its images; or it is a key of MODELS. DIRECTORY
has model.keras and plan.json. Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

_CLASSES = 10
_UNTIMED, _TIMED = 2, 8
_VOCABULARY, _WIDTH = 1000, 256


def mlp(size: int) -> keras.Model:
    """Eight wide layers over `size` numbers."""
    h = numbers = keras.Input((size,))
    for _ in range(8):
        h = keras.layers.Dense(2048, activation="relu")(h)
    return keras.Model(numbers, keras.layers.Dense(_CLASSES, activation="softmax")(h))


def lstm(size: int) -> keras.Model:
    """Four recurrent layers over `size` words."""
    words = keras.Input((size,), dtype="int32")
    h = keras.layers.Embedding(_VOCABULARY, _WIDTH)(words)
    for last in (False, False, False, True):
        h = keras.layers.LSTM(_WIDTH, return_sequences=not last)(h)
    return keras.Model(words, keras.layers.Dense(_CLASSES, activation="softmax")(h))


def gpt(size: int) -> keras.Model:
    """Six blocks of causal attention over `size` words; the last word's class."""
    words = keras.Input((size,), dtype="int32")
    h = keras.layers.Embedding(_VOCABULARY, _WIDTH)(words)
    for _ in range(6):
        seen = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(4, _WIDTH // 4)(seen, seen, use_causal_mask=True)
        seen = keras.layers.Dense(4 * _WIDTH, activation="gelu")(keras.layers.LayerNormalization()(h))
        h = h + keras.layers.Dense(_WIDTH)(seen)
    h = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(h))
    return keras.Model(words, keras.layers.Dense(_CLASSES, activation="softmax")(h))


MODELS = {"MLP": mlp, "LSTM": lstm, "GPT": gpt}


def application(name: str, pixels: int) -> keras.Model:
    """One of Keras' own, with random weights."""
    model: keras.Model = getattr(keras.applications, name)(
        weights=None, input_shape=(pixels, pixels, 3), classes=_CLASSES
    )
    return model


def save(name: str, size: int, file: Path) -> dict[str, float]:
    """Write a model, compiled."""
    model = MODELS[name](size) if name in MODELS else application(name, size)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False)
    model.save(file)
    return {"parameters": model.count_params()}


def train(directory: Path, batch: int) -> dict[str, float]:
    """The median of the steps of ``model.fit`` after the first ones, which compile."""
    import hyparflow

    strategy = hyparflow.Strategy(plan=hyparflow.Plan.load(directory / "plan.json"))
    with strategy.scope():
        model = keras.models.load_model(directory / "model.keras")
    rows = batch * (_UNTIMED + _TIMED)
    random = np.random.default_rng(1)
    shape = (rows, *model.input_shape[1:])
    words = model.input.dtype == "int32"
    given = random.integers(0, _VOCABULARY, shape) if words else random.standard_normal(shape, np.float32)
    clock = _Clock()
    model.fit(given, random.integers(0, _CLASSES, rows), batch_size=batch, verbose=0, callbacks=[clock])
    return {"seconds": statistics.median(clock.seconds[_UNTIMED:])}


class _Clock(keras.callbacks.Callback):
    """Seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin to count."""
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop."""
        self.seconds.append(time.perf_counter() - self._begin)


def main(what: str, *words: str) -> None:
    """Do it, and print what is known on rank 0."""
    from mpi4py import MPI

    first, second, *file = words
    told = save(first, int(second), Path(*file)) if what == "save" else train(Path(first), int(second))
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(told), flush=True)


main(*sys.argv[1:])

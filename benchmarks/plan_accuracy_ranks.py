"""What a rank of ``benchmarks.plan_accuracy`` does: save a model, or train it by a plan and time the steps.

::

    mpiexec -n 1 python -m benchmarks.plan_accuracy_ranks save APPLICATION PIXELS FILE
    mpiexec -n 2 python -m benchmarks.plan_accuracy_ranks train DIRECTORY PIXELS BATCH

DIRECTORY has model.keras and plan.json. Rank 0 prints one line of JSON.
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


def save(name: str, pixels: int, file: Path) -> dict[str, float]:
    """Write an application, compiled, with random weights."""
    model = getattr(keras.applications, name)(weights=None, input_shape=(pixels, pixels, 3), classes=_CLASSES)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", jit_compile=False)
    model.save(file)
    return {"parameters": model.count_params()}


def train(directory: Path, pixels: int, batch: int) -> dict[str, float]:
    """The median of the steps of ``model.fit`` after the first ones, which compile."""
    import hyparflow

    strategy = hyparflow.Strategy(plan=hyparflow.Plan.load(directory / "plan.json"))
    with strategy.scope():
        model = keras.models.load_model(directory / "model.keras")
    rows = batch * (_UNTIMED + _TIMED)
    random = np.random.default_rng(1)
    images = random.standard_normal((rows, pixels, pixels, 3), np.float32)
    clock = _Clock()
    model.fit(images, random.integers(0, _CLASSES, rows), batch_size=batch, verbose=0, callbacks=[clock])
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


def main(what: str, first: str, pixels: str, last: str) -> None:
    """Do it, and print what is known on rank 0."""
    from mpi4py import MPI

    told = save(first, int(pixels), Path(last)) if what == "save" else train(Path(first), int(pixels), int(last))
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(told), flush=True)


main(*sys.argv[1:])

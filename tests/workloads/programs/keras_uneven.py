"""A training whose ranks have different numbers of batches, epochs or evaluations, as argv[1] says: all must fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    AverageStatistics,
    BroadcastInitialState,
    DistributedOptimizer,
)

WORLD = MPI.COMM_WORLD
LAST = WORLD.rank == WORLD.size - 1
BATCHES = 4


def batches(number: int) -> Any:
    """A data set that does not know its length."""

    def generate() -> Iterator[tuple[Any, Any]]:
        for _ in range(number):
            yield np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)

    spec = tf.TensorSpec((2, 3)), tf.TensorSpec((2, 1))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def train(number: int, *callbacks: Any, epochs: int = 2, model: Any = None, **options: Any) -> Any:
    model = model or keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    if not model.compiled:
        model.compile(DistributedOptimizer("sgd"), loss="mse")
    callbacks = (BroadcastInitialState(), AverageStatistics(), AverageMetrics(), *callbacks)
    model.fit(batches(number), epochs=epochs, verbose=0, callbacks=list(callbacks), **options)
    return model


class StopsEarly(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training of one rank after its first epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = LAST


def validated() -> None:
    """One rank more evaluates after its epochs."""
    train(BATCHES, validation_data=batches(2) if LAST else None)


def trained_again() -> None:
    model = train(BATCHES)
    if not LAST:
        train(BATCHES, model=model)


CASES: dict[str, Callable[[], Any]] = {
    "batches": lambda: train(BATCHES - LAST),
    "batches of the last epoch": lambda: train(BATCHES - LAST, epochs=1),
    "no batch": lambda: train(0 if LAST else BATCHES),
    "epochs": lambda: train(BATCHES, StopsEarly()),
    "evaluations": validated,
    "trainings": trained_again,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()

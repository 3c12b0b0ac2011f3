"""A model in 2 partitions beside the same in one process: what programs of this directory share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hyparflow
import keras
import numpy as np
from mpi4py import MPI

keras.config.set_floatx("float64")
COMM = MPI.COMM_WORLD
DRAW = np.random.default_rng(5)
X, Y = DRAW.normal(size=(32, 6)), DRAW.normal(size=(32, 1))
HOW = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


def build() -> Any:
    """Four layers; BatchNormalization has variables that are not trained."""
    x = keras.Input((6,), name="x")
    h = keras.layers.Dense(8, activation="tanh", name="first")(x)
    h = keras.layers.BatchNormalization(name="norm")(h)
    h = keras.layers.Dense(8, activation="tanh", name="second")(h)
    return keras.Model(x, keras.layers.Dense(1, name="last")(h), name="truth")


def compiled(model: Any, optimizer: Any = "adam") -> Any:
    """With a loss."""
    model.compile(optimizer, "mse")
    return model


def strategy(costs: str = "estimated") -> hyparflow.Strategy:
    """One micro-batch, so that the numbers are Keras' own."""
    return hyparflow.Strategy(partitions=2, micro_batches=1, costs=costs)


def built(with_: Callable[[Any], None] = lambda model: None) -> tuple[hyparflow.Strategy, Any]:
    """A strategy, and a model that was built in its scope, and given to ``with_`` there."""
    how = strategy()
    with how.scope():
        model = build()
        with_(model)
    return how, model


def far(one: Any, other: Any) -> float:
    """The largest difference of two lists of arrays, over all ranks."""
    own = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in zip(one, other, strict=True))
    return float(COMM.allreduce(own, MPI.MAX))


def raised(action: Callable[[], Any]) -> list[str]:
    """What each rank raised: its kind and words."""
    try:
        action()
        own = "nothing"
    except Exception as error:
        own = f"{type(error).__name__}: {error}"
    return list(COMM.allgather(own))


def started() -> Any:
    """A model in one process, the same on every rank, and not what a scope would have made."""
    keras.utils.set_random_seed(77)
    plain = compiled(build())
    plain.get_layer("norm").moving_mean.assign(np.linspace(-1.0, 1.0, 8))
    return plain

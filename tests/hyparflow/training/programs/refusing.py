"""Models that cannot be trained in parts, and one that can: found.json, from rank 0, what each rank raised."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
from beside import COMM, HOW, X, Y, build, compiled, far, raised, strategy
from keras import layers


def spectral() -> Any:
    """A layer that assigns what trains."""
    x = keras.Input((6,))
    h = layers.SpectralNormalization(layers.Dense(8, name="wrapped"), name="bounded")(x)
    return keras.Model(x, layers.Dense(1)(h))


def stateful() -> Any:
    """A layer whose state goes from batch to batch."""
    x = keras.Input(batch_shape=(8, 6))
    h = layers.LSTM(4, stateful=True, name="remembering")(layers.Reshape((3, 2))(x))
    return keras.Model(x, layers.Dense(1)(h))


def shared(rows: int = 0) -> Any:
    """A BatchNormalization that is called twice."""
    norm = layers.BatchNormalization(name="norm")
    x = keras.Input((6,), name="x")
    h = norm(layers.Dense(6, activation="tanh", name="first")(x))
    h = norm(layers.Dense(6, activation="tanh", name="second")(h))
    for index in range(rows):
        h = layers.Dense(6, activation="tanh", name=f"row{index}")(h)
    return keras.Model(x, layers.Dense(1, name="last")(h), name="shared")


class Failing(layers.Layer):
    """A user's layer with a mistake in what runs in training."""

    def call(self, given: Any, training: bool | None = None) -> Any:
        if training:
            raise ValueError("a mistake in my layer")
        return given


def failing() -> Any:
    """A mistake on the rank that has the layer."""
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(1)(Failing(name="mine")(layers.Dense(4)(x))))


class Counting(layers.Layer):
    """A user's layer that counts its calls in training, or ``always``."""

    def __init__(self, *, always: bool, **options: Any) -> None:
        super().__init__(**options)
        self.always = always

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, given: Any, training: bool | None = None) -> Any:
        if training or self.always:
            self.calls.assign_add(1.0)
        return given * (1 + 0.1 * self.calls)


def counting(always: bool = False) -> Any:
    """A state that says how often the layer was called."""
    x = keras.Input((6,), name="x")
    h = Counting(name="mine", always=always)(layers.Dense(4, name="first")(x))
    return keras.Model(x, layers.Dense(1, name="last")(h), name="counting")


class Again(keras.callbacks.Callback):
    """Compiles in the midst of a fit."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        compiled(self.model)


def in_two_parts() -> Any:
    """Micro-batches."""
    return hyparflow.Strategy(2, micro_batches=2, costs="estimated")


def evaluated(model: Any) -> None:
    """Without a fit before."""
    in_two_parts().evaluate(compiled(model), X, Y, verbose=0)


def fitted(make: Callable[[], Any], how: Any = None, **options: Any) -> Any:
    """After one fit under a strategy."""
    with (how or strategy()).scope():
        model = compiled(make())
        model.fit(X, Y, **HOW, **options)
    return model


def known_optimizer() -> Any:
    """One that was built for the head alone, and should go on with all of the model."""
    model = build()
    for layer in model.layers[:-1]:
        layer.trainable = False
    compiled(model).fit(X, Y, **HOW)
    for layer in model.layers:
        layer.trainable = True
    return compiled(model, model.optimizer)


def without_reduction() -> None:
    """A loss that gives a value for each sample."""
    model = build()
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=None))
    strategy().fit(model, X, Y, **HOW)


def beside_keras(costs: str, make: Callable[[], Any] = lambda: shared(3)) -> float:
    """One that is not refused (the shared one, on one stage), and the same in one process."""
    keras.utils.set_random_seed(3)
    plain = make()
    how = strategy(costs)
    with how.scope():
        model = compiled(make())
    model.set_weights(plain.get_weights())
    model.fit(X, Y, **HOW)
    compiled(plain).fit(X, Y, **HOW)
    home = {node: stage.index for stage in how.plan.stages for node in stage.nodes}
    assert len(set(home.values())) == 2
    return far(model.get_weights(), plain.get_weights())


def nowhere() -> None:
    """All of the model belongs on one stage."""
    norm = layers.BatchNormalization(name="norm")
    x = keras.Input((6,), name="x")
    h = norm(layers.Dense(6, name="first")(norm(x)))
    model = compiled(keras.Model(x, norm(h), name="bound"))
    strategy().fit(model, X, np.zeros((32, 6)), **HOW)


def of_two_outputs() -> None:
    """A loss that compares two outputs with each other."""

    def apart(target: Any, predicted: Any) -> Any:
        return keras.ops.mean((predicted[0] - predicted[1] - target[0]) ** 2, axis=-1)

    x = keras.Input((6,), name="x")
    h = layers.Dense(8, name="first")(x)
    model = keras.Model(x, [layers.Dense(1, name=name)(h) for name in ("one", "other")], name="two")
    model.compile("sgd", (apart, ["mse", "mse"]))  # a tuple, where the outputs are a list
    strategy().fit(model, X, [Y, Y], **HOW)


def main(root: Path) -> None:
    """All cases."""
    found: dict[str, Any] = {
        "SpectralNormalization": raised(lambda: fitted(spectral)),
        "stateful": raised(lambda: fitted(stateful)),
        "nowhere to cut": raised(nowhere),
        "a state": raised(lambda: fitted(counting, in_two_parts())),
        "a state in an evaluation": raised(lambda: evaluated(counting(always=True))),
        "a state in one part": beside_keras("estimated", counting),
        "compiled by a callback": raised(lambda: fitted(build, callbacks=[Again()])),
        "a mistake in a layer": raised(lambda: fitted(failing)),
        "a built optimizer": raised(lambda: strategy().fit(known_optimizer(), X, Y, **HOW)),
        "a loss of two outputs": raised(of_two_outputs),
        "a loss without a reduction": raised(without_reduction),
        "shared": {costs: beside_keras(costs) for costs in ("estimated", "measured")},
    }
    if COMM.rank == 0:
        (root / "found.json").write_text(json.dumps(found, indent=1))


main(Path(sys.argv[1]))

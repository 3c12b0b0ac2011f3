"""``model.fit`` and its kin under a strategy, beside plain Keras: found.json, from rank 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
import tensorflow as tf
from beside import COMM, HOW, X, Y, build, compiled, far, raised, started, strategy

Pair = tuple[Any, Any]


def both(start: Any = None) -> Pair:
    """The same model under a strategy and in one process."""
    plain = started() if start is None else start
    with strategy().scope():
        model = compiled(build())  # compiled in the scope, as TensorFlow's strategies want it
    model.set_weights(plain.get_weights())
    return model, plain


def alike(*histories: Any) -> float:
    """The largest difference of two histories; infinite where they have other names or epochs."""
    one, other = histories
    if one.epoch != other.epoch or sorted(one.history) != sorted(other.history):
        return float("inf")
    return far([one.history[name] for name in sorted(one.history)], [other.history[n] for n in sorted(one.history)])


class Watch(keras.callbacks.Callback):
    """A user's callback, which reads the model in the midst of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen += [self.model.predict(X, verbose=0), *self.model.get_weights()]


def fits(model: Any, plain: Any) -> dict[str, float]:
    """Everything that ``fit`` takes."""
    callbacks = keras.callbacks

    def asked() -> dict[str, dict[str, Any]]:
        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
        rate = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        stop = callbacks.EarlyStopping("val_loss", patience=0, min_delta=1.0, restore_best_weights=True)
        return {
            "plain": {"x": X, "y": Y, **HOW},
            "validation_split": {"x": X, "y": Y, **HOW, "validation_split": 0.25},
            "validation_data": {"x": X, "y": Y, **HOW, "validation_data": (X, Y), "validation_freq": [2]},
            "initial_epoch": {"x": X, "y": Y, **HOW, "initial_epoch": 3, "epochs": 5},
            "steps_per_epoch": {"x": dataset, "epochs": 3, "steps_per_epoch": 2, "verbose": 0},
            "callbacks": {"x": X, "y": Y, **HOW, "epochs": 4, "validation_split": 0.25, "callbacks": [rate, stop]},
            "sample_weight": {"x": X, "y": Y, **HOW, "sample_weight": np.linspace(0.0, 2.0, len(X))},
            "another batch size": {"x": X, "y": Y, **HOW, "batch_size": 16},
        }

    found = {name: alike(model.fit(**one), plain.fit(**other)) for (name, one), other in zip(
        asked().items(), asked().values(), strict=True
    )}  # fmt: skip
    watches = Watch(), Watch()
    for each, watch in zip((model, plain), watches, strict=True):
        each.fit(X, Y, **HOW, callbacks=[watch])
    found["a user's callback"] = far(watches[0].seen, watches[1].seen)
    found["history of the model"] = alike(model.history, plain.history)
    return found


def batches(model: Any, plain: Any) -> dict[str, float]:
    """The calls with one batch, and those that train nothing."""
    calls: dict[str, Callable[[Any], Any]] = {
        "train_on_batch": lambda each: [each.train_on_batch(X[:8], Y[:8]) for _ in range(3)],
        "train_on_batch with weights": lambda each: each.train_on_batch(X[:8], Y[:8], np.linspace(0.0, 1.0, 8)),
        "test_on_batch": lambda each: each.test_on_batch(X[:8], Y[:8]),
        "predict_on_batch": lambda each: each.predict_on_batch(X[:8]),
        "evaluate": lambda each: each.evaluate(X, Y, batch_size=7, verbose=0),
        "evaluate, return_dict": lambda each: each.evaluate(X, Y, return_dict=True, verbose=0)["loss"],
        "predict": lambda each: each.predict(X, batch_size=5, verbose=0),
        "get_weights": lambda each: np.concatenate([value.reshape(-1) for value in each.get_weights()]),
    }
    return {name: far([call(model)], [call(plain)]) for name, call in calls.items()}


def recompiled(model: Any, plain: Any) -> float:
    """Freeze, another optimizer, the same optimizer with another loss, another strategy."""

    def losses(each: Any, again: Any) -> list[float]:
        each.get_layer("first").trainable = False
        each.compile(keras.optimizers.Adam(0.01), "mse")
        found = list(each.fit(X, Y, **HOW).history["loss"])
        each.compile(each.optimizer, "mae")  # goes on with what the optimizer has learned
        found += each.fit(X, Y, **HOW).history["loss"]
        with again:
            found += each.fit(X, Y, **HOW).history["loss"]
        each.get_layer("first").trainable = True
        each.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return [*found, *each.fit(X, Y, **HOW).history["loss"]]

    return far([losses(model, strategy().scope())], [losses(plain, nullcontext())])


def loaded(root: Path) -> dict[str, float]:
    """A compiled Adam that has learned, loaded from a file, goes on."""
    plain = started()
    plain.fit(X, Y, **HOW)
    file = root / "adam.keras"
    if COMM.rank == 0:
        plain.save(file)
    COMM.barrier()
    how = strategy()
    with how.scope():
        inside = keras.models.load_model(file)
    outside = keras.models.load_model(file)
    expected = plain.fit(X, Y, **HOW)
    found = {"load_model in the scope": alike(inside.fit(X, Y, **HOW), expected)}
    found["load_model after the scope"] = alike(strategy().fit(outside, X, Y, **HOW), expected)
    inside.save(root / "all.keras")
    hyparflow.gather(outside)
    if COMM.rank == 1:
        outside.save(root / "one.keras")  # any rank, alone
    COMM.barrier()
    for name in ("all", "one"):
        again = keras.models.load_model(root / f"{name}.keras")
        found[f"saved by {name}"] = far([*again.get_weights(), *state(again)], [*plain.get_weights(), *state(plain)])
    own = sum(np.asarray(each).size for each in inside.variables if each._value is not None)
    found["held"] = COMM.allgather(own / sum(np.asarray(each).size for each in plain.variables))
    return found


def read_again(root: Path) -> float:
    """Weights that are loaded in the midst of a training bring the optimizer's state of then."""
    model, plain = both()
    found = []
    for each, name in ((model, "parts"), (plain, "plain")):
        file = root / f"{name}.weights.h5"
        each.fit(X, Y, **HOW)
        if each is model or COMM.rank == 0:
            each.save_weights(file)
        COMM.barrier()
        each.fit(X, Y, **HOW)
        each.load_weights(file)
        found.append([each.fit(X, Y, **HOW).history["loss"], each.optimizer.iterations, *each.get_weights()])
    return far(*found)


def exported(root: Path) -> dict[str, float]:
    """A model in parts is exported whole, and trains on."""
    model, plain = both()
    found = {}
    for number in range(2):
        for each in (model, plain):
            each.fit(X, Y, **HOW)
        model.export(root / f"model-{number}", verbose=False)
        read = tf.saved_model.load(str(root / f"model-{number}"))
        found[f"after {number + 1} trainings"] = far([read.serve(X).numpy()], [plain(X).numpy()])
    return found


def smaller(micro_batches: int) -> float:
    """Batches of a loop that are smaller than the first, and do not divide."""

    def made() -> Any:
        keras.utils.set_random_seed(9)
        x = keras.Input((6,), name="x")
        h = keras.layers.Dense(8, activation="tanh", name="first")(x)
        return compiled(keras.Model(x, keras.layers.Dense(1, name="last")(h), name="loop"))

    plain = made()
    with hyparflow.Strategy(2, micro_batches=micro_batches, costs="estimated").scope():
        model = made()
    found = [
        [*(each.train_on_batch(X[rows], Y[rows]) for rows in (slice(8), slice(8, 13), slice(16))), *each.get_weights()]
        for each in (model, plain)
    ]
    return far(*found)


class Keeps(keras.layers.Layer):
    """A layer that keeps its last inputs in a variable."""

    def build(self, shape: Any) -> None:
        self.last = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="last")

    def call(self, inputs: Any) -> Any:
        self.last.assign(inputs)
        return inputs


def kept() -> float:
    """Data that change after a training, of which a variable of the model has a part."""
    memory = np.zeros(16 * 16 * 8 + 64, np.uint8)
    x = memory[-memory.ctypes.data % 64 :][: 16 * 16 * 8].view(np.float64).reshape(16, 16)  # as TensorFlow aligns
    x[:] = np.arange(16 * 16).reshape(16, 16) / 100
    with hyparflow.Strategy(2, micro_batches=1, costs="estimated").scope():
        inputs = keras.Input((16,), batch_size=8)
        h = keras.layers.Dense(8, name="first")(Keeps(name="keeps")(inputs))
        model = compiled(keras.Model(inputs, keras.layers.Dense(1, name="last")(h)))
        model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0)
        expected = x[8:].copy()
        x[:] = -1
        (last,) = (each for each in model.get_weights() if each.shape == (8, 16))
    return far([last], [expected])


def state(model: Any) -> list[Any]:
    """Of the optimizer."""
    return [np.asarray(each) for each in model.optimizer.variables]


class Steps(keras.Model):
    """With a step of its own."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class Tests(keras.Model):
    """With a test step of its own."""

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)


def refused() -> dict[str, list[str]]:
    """What each rank raises."""
    found = {}
    for kind in (Steps, Tests):
        with strategy().scope():
            of = build()
            model = compiled(kind(of.inputs, of.outputs, name="own"))
        found[kind.__name__] = raised(lambda model=model: model.fit(X, Y, **HOW))
    model, _ = both()
    found["typo"] = raised(lambda: model.fit(X, Y, epoch=2))
    return found


def main(root: Path, *names: str) -> None:
    """The cases that are named."""
    cases: dict[str, Callable[[], Any]] = {
        "fit": lambda: fits(*both()),
        "batches": lambda: batches(*both()),
        "recompiled": lambda: recompiled(*both()),
        "loaded": lambda: loaded(root),
        "refused": refused,
        "read again": lambda: read_again(root),
        "smaller batches": lambda: smaller(2),
        "exported": lambda: exported(root),
        "kept inputs": kept,
    }
    found = {name: cases[name]() for name in names}
    if COMM.rank == 0:
        (root / "found.json").write_text(json.dumps(found, indent=1))


main(Path(sys.argv[1]), *sys.argv[2:])

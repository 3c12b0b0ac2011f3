"""Which steps a training, an evaluation and a prediction have, beside plain Keras: ``steps.py FILE``, from rank 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from beside import COMM, HOW, X, Y, build, far, raised, strategy

Calls = Callable[[Any], list[Any]]


class Record(keras.callbacks.Callback):
    """The batches that callbacks hear of, and what a prediction tells them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.outputs: list[Any] = []
        for kind in ("train", "test", "predict"):
            for when in ("begin", "end"):
                setattr(self, f"on_{kind}_batch_{when}", self._on(kind, when))

    def _on(self, kind: str, when: str) -> Callable[..., None]:
        def heard(batch: int, logs: Any = None) -> None:
            self.events.append([kind, when, int(batch)])
            if (kind, when) == ("predict", "end"):
                self.outputs.append(np.asarray(logs["outputs"]))

        return heard


class Batches(keras.utils.PyDataset):
    """The data in four batches."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * 8, index * 8 + 8)
        return X[rows], Y[rows]


def chain() -> Any:
    """Sequential, to be built for the data."""
    return keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)])


def pair(make: Callable[[], Any] = build, **options: Any) -> tuple[Any, Any]:
    """The same model in partitions and in one process."""
    with strategy().scope():
        keras.utils.set_random_seed(3)
        parts = make()
    keras.utils.set_random_seed(3)
    plain = make()
    for each in (parts, plain):
        each.compile(keras.optimizers.SGD(0.05), "mse", **options)
    return parts, plain


def beside(calls: Calls, *models: Any) -> dict[str, Any]:
    """Whether both have the same shape of events, and the largest difference of the numbers."""
    found, expected = map(calls, models)
    lengths = [[len(np.ravel(each)) for each in numbers] for numbers in (found, expected)]
    return {"steps": lengths, "far": far(found, expected) if lengths[0] == lengths[1] else None}


def fits(**options: Any) -> Calls:
    """The history, the steps that callbacks heard of, and the weights."""

    def calls(model: Any) -> list[Any]:
        record = Record()
        history = model.fit(X, Y, **{**HOW, **options}, callbacks=[record]).history
        return [history["loss"], [event[2] for event in record.events], *model.get_weights()]

    return calls


def in_groups(model: Any) -> list[Any]:
    """Callbacks where several steps are one execution, the last one smaller."""
    record = Record()
    model.fit(X, Y, **HOW, callbacks=[record])
    model.fit(X, Y, **HOW, steps_per_epoch=2, callbacks=[record])
    losses = [model.evaluate(X, Y, batch_size=8, verbose=0, steps=steps, callbacks=[record]) for steps in (None, 2)]
    model.predict(X, batch_size=8, verbose=0, callbacks=[record])
    names = {"train": 0, "test": 1, "predict": 2, "begin": 3, "end": 4}
    return [[[names[kind], names[when], batch] for kind, when, batch in record.events], losses, *record.outputs]


def capped(calls: Calls) -> Calls:
    """Within the limits that Keras has for debugging."""

    def within(model: Any) -> list[Any]:
        keras.config.set_max_epochs(1)
        keras.config.set_max_steps_per_epoch(3)
        try:
            return [*calls(model), model.evaluate(X, Y, batch_size=8, verbose=0)]
        finally:
            keras.config.set_max_epochs(None)
            keras.config.set_max_steps_per_epoch(None)

    return within


def frozen(model: Any) -> list[Any]:
    """Nothing trains, in batches of several sizes."""
    return [model.fit(X, Y, **{**HOW, "batch_size": size}).history["loss"] for size in (8, 16, 8)]


def main(file: Path) -> None:
    """All cases."""
    parts, plain = pair()
    for each in (parts, plain):
        each.trainable = False
        each.compile("adam", "mse")
    found = {
        "more steps than batches": beside(fits(steps_per_epoch=6), *pair()),
        "steps that do not divide the batches": beside(fits(steps_per_epoch=3, epochs=4), *pair()),
        "steps_per_execution": beside(in_groups, *pair(steps_per_execution=3)),
        "Keras' limits": beside(capped(fits()), *pair()),
        "nothing trains": beside(frozen, parts, plain),
        "a Sequential of a PyDataset": beside(
            lambda model: [model.fit(Batches(), epochs=2, verbose=0, shuffle=False).history["loss"]], *pair(chain)
        ),
        "a step after the end": raised(lambda: parts.evaluate(X, Y, batch_size=8, steps=9, verbose=0)),
    }
    if COMM.rank == 0:
        file.write_text(json.dumps(found, indent=1))


main(Path(sys.argv[1]))

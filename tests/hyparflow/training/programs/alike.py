"""Ranks whose data differ behind the first batch, and random numbers in and behind a scope: found.json, from rank 0."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
from beside import COMM, HOW, X, Y, build, built, compiled, far, raised, strategy

OTHERS = X.copy()
OTHERS[20:, 3] += COMM.rank
SHUFFLED: dict[str, Any] = {"batch_size": 8, "verbose": 0}


def some(batches: int, x: Any = X) -> Iterator[Any]:
    """A generator."""
    for begin in range(0, 8 * batches, 8):
        yield x[begin : begin + 8], Y[begin : begin + 8]


def differing() -> dict[str, list[str]]:
    """Data that are the same in the first batch only."""

    def fit(*data: Any, **how: Any) -> Any:
        model = compiled(built()[1])
        return lambda: model.fit(*data, **how)

    evaluated = compiled(built()[1])
    return {
        "arrays": raised(fit(OTHERS, Y, **HOW)),
        "shuffled arrays": raised(fit(OTHERS, Y, **HOW | {"shuffle": True})),
        "generator": raised(fit(some(4, OTHERS), verbose=0)),
        "evaluation": raised(lambda: evaluated.evaluate(OTHERS, Y, batch_size=8, verbose=0)),
        "end": raised(fit(some(4 - COMM.rank), verbose=0)),
    }


def seeded() -> dict[str, Any]:
    """What a scope draws, beside plain Keras from the same seed."""
    keras.utils.set_random_seed(31)
    plain = build().get_weights()
    after = random.random(), np.random.random()
    keras.utils.set_random_seed(31)
    with strategy().scope():
        weights = build()
    following = random.random(), np.random.random()
    random.seed(COMM.rank)
    with strategy().scope():
        one, other = build(), build()
    with hyparflow.Strategy(2, micro_batches=1, costs="estimated", seed=31).scope():
        given = build()
    every = [each.get_weights() for each in (weights, one, other, given)]
    return {
        "weights": far(every[0], plain),
        "after": far([following], [after]),
        "ranks": far(every[1], COMM.bcast(every[1])),
        "two": far(every[1], every[2]),
        "given": far(every[3], plain),
    }


def continued(root: Path) -> float:
    """An unseeded order of the data, beside the same with a break."""

    def trained(how: hyparflow.Strategy, epochs: int, name: str, **more: Any) -> Any:
        with how.scope():
            model = build()
            model.set_weights(start)
        how.fit(compiled(model), X, Y, epochs=epochs, checkpoint=root / name, **SHUFFLED, **more)
        return model.get_weights()

    start = compiled(built()[1]).get_weights()
    keras.utils.set_random_seed(7)
    straight = trained(strategy(), 3, "straight")
    keras.utils.set_random_seed(7)
    trained(strategy(), 1, "broken")
    keras.utils.set_random_seed(8)
    return far(trained(strategy(), 3, "broken", restart=True), straight)


def main(root: Path) -> None:
    found = differing() | seeded() | {"continued": continued(root)}
    if COMM.rank == 0:
        (root / "found.json").write_text(json.dumps(found))


main(Path(sys.argv[1]))

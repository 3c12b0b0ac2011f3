"""Keras programs drawn from seeds, argv[2:], each in one process on the joint batches and on ranks with their parts.

Written as JSON to argv[1]: for each seed the largest difference of anything that it sees, or what was raised on each
rank, and what is expected: "equal", or a part of the error.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from errors import error_of
from keras_oracle import FEATURES, PER_RANK, STEPS, WORLD, Late, data, difference, mine
from mpi4py import MPI

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    AverageStatistics,
    BroadcastInitialState,
    DistributedOptimizer,
)

#: What makes ranks unlike each other, and a part of the error.
UNLIKE = {
    "activation": "in the model: all ranks must train the same model",
    "adapted": "was adapted to: adapt layers to the same samples",
    "learning rate": "learning_rate: at the start of epoch 1",
    "no broadcast": "all ranks must begin with the same weights",
    "one file": "several ranks would write one checkpoint",
    "settings": "in the optimizer's settings: all ranks must train the same model",
    "steps": "in steps: all ranks must take equally many steps",
    "units": "all ranks must train the same ",
}


class Program:
    """The choices drawn from a seed."""

    def __init__(self, seed: str) -> None:
        draw = random.Random(seed)
        self.kind = draw.choice(["functional", "sequential", "late", "late subclass"])
        self.units = [draw.randint(1, 6) for _ in range(draw.randint(0, 2))]
        self.activation = draw.choice(["tanh", "relu", "softplus"])
        self.adapt = self.kind != "late subclass" and draw.random() < 0.3
        self.frozen = draw.random() < 0.2
        self.policy = draw.choice(["float32", "float32", "float64", "bfloat16"])
        self.optimizer = draw.choice(["sgd", "momentum", "adamw", "averaged", "clipped"])
        self.by_name = self.optimizer == "sgd" and draw.random() < 0.5
        self.options: dict[str, Any] = {"bucket_bytes": draw.choice([40, 200, 10**6])}
        self.accumulate = draw.choice([1, 1, 1, 3])
        self.eager = draw.random() < 0.15
        self.at_once = 1 if self.eager else draw.choice([1, 1, 3])
        self.short = draw.random() < 0.3
        self.fits = draw.choice([1, 1, 2])
        self.other_model = draw.random() < 0.3
        self.callbacks = [each for each in ("plateau", "statistics", "stops", "saves") if draw.random() < 0.3]
        self.unlike = draw.choice(sorted(UNLIKE)) if draw.random() < 0.25 else ""
        if self.unlike == "adapted":
            self.kind, self.adapt = "functional", True
        if self.unlike in ("activation", "units"):
            self.kind, self.units = draw.choice(["functional", "sequential"]), [3, 2]

    def layers(self, joint: bool) -> list[Any]:
        odd = not joint and WORLD.rank > 0
        found: list[Any] = [keras.layers.Normalization(dtype=self.policy)] if self.adapt else []
        for number, units in enumerate(self.units):
            found.append(
                keras.layers.Dense(
                    units + (odd and self.unlike == "units"),
                    "linear" if odd and self.unlike == "activation" else self.activation,
                    dtype=self.policy,
                    trainable=not (self.frozen and number == 0),
                )
            )
        return [*found, keras.layers.Dense(1, dtype=self.policy)]

    def model(self, joint: bool) -> Any:
        if self.kind == "late subclass":
            return Late()
        layers = self.layers(joint)
        if self.adapt:
            own = 1 if joint or self.unlike != "adapted" else 1 + WORLD.rank
            layers[0].adapt(own * (2 * data()[0] + 1))
        if self.kind == "late":
            return keras.Sequential(layers)
        if self.kind == "sequential":
            return keras.Sequential([keras.Input((FEATURES,)), *layers])
        inputs = h = keras.Input((FEATURES,))
        for layer in layers:
            h = layer(h)
        return keras.Model(inputs, h)

    def optimize(self, joint: bool) -> Any:
        odd = not joint and WORLD.rank > 0 and self.unlike == "settings"
        if self.by_name and not odd and (joint is False) and self.accumulate == 1:
            return DistributedOptimizer("sgd", WORLD, **self.options)
        made = {
            "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.5 * odd),
            "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9 - 0.5 * odd),
            "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1 + odd),
            "averaged": lambda: keras.optimizers.SGD(0.02, use_ema=True, ema_momentum=0.6 + 0.1 * odd),
            "clipped": lambda: keras.optimizers.SGD(0.02, global_clipnorm=0.3 + odd),
        }[self.optimizer]()
        if joint:
            made.gradient_accumulation_steps = self.accumulate if self.accumulate > 1 else None
            return made
        return DistributedOptimizer(made, WORLD, accumulate=self.accumulate, **self.options)

    def samples(self, joint: bool) -> tuple[Any, Any]:
        """All batches, of which the last one may be shorter on all ranks."""
        found = []
        for each in data():
            parts = each.reshape(STEPS, WORLD.size, PER_RANK, -1)
            cut = PER_RANK // 2 if self.short else PER_RANK
            full = parts[:-1].reshape(-1, parts.shape[-1]) if joint else mine(False, each)[:-PER_RANK]
            last = parts[-1, :, :cut].reshape(-1, parts.shape[-1]) if joint else parts[-1, WORLD.rank, :cut]
            found.append(np.concatenate([full, last]))
        if self.unlike == "steps" and not joint and WORLD.rank:
            found = [each[: 2 * PER_RANK] for each in found]
        return found[0], found[1]

    def around(self, joint: bool, file: Path) -> list[Any]:
        found: list[Any] = []
        if not joint:
            found = [] if self.unlike == "no broadcast" else [BroadcastInitialState(WORLD)]
            found += [AverageStatistics(WORLD)] if "statistics" in self.callbacks else []
            found.append(AverageMetrics(WORLD))
        if "plateau" in self.callbacks:
            found.append(keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10))
        if "stops" in self.callbacks:
            found.append(keras.callbacks.EarlyStopping("loss", min_delta=10, patience=1))
        if self.unlike == "learning rate" and not joint:
            found.append(keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * (1 + WORLD.rank)))
        if self.unlike == "one file" and not joint:
            found.append(keras.callbacks.ModelCheckpoint(file, save_weights_only=True))
        elif "saves" in self.callbacks and (joint or WORLD.rank == 0):
            found.append(
                keras.callbacks.ModelCheckpoint(
                    file.with_name(f"{joint}-{WORLD.rank}.weights.h5"), save_weights_only=True
                )
            )
        return found

    def run(self, joint: bool, file: Path) -> list[Any]:
        """Train, and return what is seen."""
        seen: list[Any] = []
        x, y = self.samples(joint)
        batch = PER_RANK * (WORLD.size if joint else 1)
        for _ in range(1 + self.other_model):
            model, optimizer = self.model(joint), self.optimize(joint)
            model.compile(optimizer, "mse", run_eagerly=self.eager, steps_per_execution=self.at_once)
            for _ in range(self.fits):
                model.fit(x, y, batch, epochs=3, shuffle=False, verbose=0, callbacks=self.around(joint, file))
            seen += [
                np.asarray(each, np.float64) for each in (*model.get_weights(), model.predict(data()[0], verbose=0))
            ]
        return seen


def result(seed: str, file: Path) -> dict[str, Any]:
    program, seen, errors = Program(seed), [], []
    for joint in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0 if joint else WORLD.rank)
        errors.append(error_of(lambda joint=joint: seen.append(program.run(joint, file))))
    told = {"kind": vars(program) | {"options": str(program.options)}, "expected": UNLIKE.get(program.unlike, "equal")}
    ranks = WORLD.allgather(errors)
    if any(error != "no error" for each in ranks for error in each):
        return told | {"seen": [each[0] for each in ranks], "alone": ranks[0][1]}
    largest = max(difference(*both) for both in zip(*seen, strict=True))
    return told | {"seen": WORLD.allreduce(largest, MPI.MAX), "alone": "no error"}


if __name__ == "__main__":
    output = Path(sys.argv[1])
    results = {seed: result(seed, output.with_name("drawn.weights.h5")) for seed in sys.argv[2:]}
    if WORLD.rank == 0:
        output.write_text(json.dumps(results, default=str))

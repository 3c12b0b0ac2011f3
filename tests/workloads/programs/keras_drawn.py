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
import tensorflow as tf
from errors import error_of
from keras_oracle import FEATURES, PER_RANK, STEPS, WORLD, Late, data, difference, mine
from mpi4py import MPI

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    AverageStatistics,
    BroadcastInitialState,
    DistributedOptimizer,
)
from hidl_workloads.training.data_parallel.tensorflow_gradients import broadcast

#: What makes ranks unlike each other, and a part of the error.
UNLIKE = {
    "activation": "in the model: all ranks must train the same model",
    "adapted": "was adapted to: adapt layers to the same samples",
    "compiled by XLA": "XLA does not support sums over ranks",
    "learning rate": "learning_rate: at the start of epoch 1",
    "learning rate later": "in the learning rate: all ranks must change learning rates in the same way",
    "no broadcast": "all ranks must start with the same weights",
    "one file": "several ranks would write the same checkpoint",
    "settings": "in the optimizer's settings: all ranks must train the same model",
    "steps": "in steps: all ranks must take the same number of steps",
    "units": "all ranks must train the same ",
    "weights": "at the start of epoch 2, these must be equal on all ranks",
}
#: Those of them that a loop shows too, which compares no models.
IN_LOOPS = ("compiled by XLA", "learning rate later", "no broadcast")
RATE = 0.02
#: Optimizers that keep gradients, or what they compute from them in place, between steps.
SLOTTED = ("adam", "adagrad", "centered", "nadam", "rmsprop", "optimistic")


@keras.saving.register_keras_serializable()
class Optimistic(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Steps by ``2 * gradient - last``, for which it keeps the last gradient as it is."""

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.last = self.add_optimizer_variables(variables, "last")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        last = self.last[self._get_variable_index(variable)]
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * (2 * keras.ops.cast(gradient, variable.dtype) - last))
        self.assign(last, gradient)


class Adds(keras.layers.Layer):  # type: ignore[misc]
    """Adds a loss of its input."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class Changes(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes weights after the first epoch."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for weight in self.model.trainable_weights if epoch == 0 else ():
            weight.assign(self.factor * weight + 0.01)


class ChangesRate(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes the learning rate before the second step of each epoch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = self.rate if batch else RATE


class Program:
    """The choices drawn from a seed."""

    def __init__(self, seed: str) -> None:
        draw = random.Random(seed)
        self.kind = draw.choice(["functional", "sequential", "late", "late subclass", "nested", "shared"])
        self.units = [draw.randint(1, 6) for _ in range(draw.randint(0, 2))]
        self.activation = draw.choice(["tanh", "relu", "softplus"])
        self.adapt = self.kind != "late subclass" and draw.random() < 0.3
        self.frozen = draw.random() < 0.2
        self.adds = draw.random() < 0.2
        self.regularized = draw.random() < 0.2
        self.policy = draw.choice(["float32", "float32", "float64", "bfloat16", "mixed_bfloat16", "mixed_float16"])
        self.optimizer = draw.choice(["sgd", "momentum", "adamw", "averaged", "clipped", "scheduled"])
        self.by_name = self.optimizer == "sgd" and draw.random() < 0.5
        self.options: dict[str, Any] = {"bucket_bytes": draw.choice([40, 200, 10**6])}
        self.accumulate = draw.choice([1, 1, 1, 3])
        self.own_accumulation = draw.random() < 0.4
        self.eager = draw.random() < 0.15
        self.at_once = 1 if self.eager else draw.choice([1, 1, 3])
        self.short = draw.random() < 0.3
        self.then = draw.choice(["", "", "fit", "resumed", "compiled again", "unfrozen", "loaded"])
        self.other_model = draw.random() < 0.2
        self.callbacks = [
            each for each in ("plateau", "statistics", "stops", "saves", "changes", "rates") if draw.random() < 0.25
        ]
        self.loop = draw.random() < 0.25
        self.unlike = draw.choice(sorted(UNLIKE)) if draw.random() < 0.25 else ""
        self.width = 0
        self._make_possible(draw)
        self._choose_memory(random.Random(f"memory {seed}"))

    def _make_possible(self, draw: random.Random) -> None:
        """Leave out what excludes other choices."""
        if self.unlike and self.unlike not in IN_LOOPS:
            self.loop = False
        if self.unlike == "adapted":
            self.kind, self.adapt = "functional", True
        if self.unlike in ("activation", "units"):
            self.kind, self.units = draw.choice(["functional", "sequential"]), [3, 2]
        if self.kind == "late subclass":
            self.policy = "float32"
        if self.policy != "float32":
            self.regularized = self.adds = False  # losses of several types cannot be added, in one process either
        if self.policy == "mixed_float16":
            self.accumulate, self.by_name = 1, False
        if self.unlike in ("learning rate", "learning rate later", "weights"):
            self.optimizer, self.callbacks, self.accumulate = "momentum", [], 1
        if self.unlike == "learning rate later":
            self.at_once, self.by_name = 1, False
        if self.optimizer in ("scheduled", "sgd", "adamw"):  # their learning rates are others, or cannot be set
            self.callbacks = [each for each in self.callbacks if each not in ("plateau", "rates")]
        if self.at_once > 1:
            self.callbacks = [each for each in self.callbacks if each != "rates"]
        if self.optimizer == "scheduled":
            self.own_accumulation = True  # with accumulate=k a schedule counts updates, not batches
        if self.then == "loaded" and (self.kind == "late subclass" or self.adds):
            self.then = "fit"

    def _choose_memory(self, draw: random.Random) -> None:
        """Choose what decides who owns the memory of averages, and how long it is in use."""
        if self.unlike:
            return
        self.options["bucket_bytes"] = draw.choice([1, 1, 40, 200, 10**6])  # 1: a bucket for each variable
        self.options["share_memory"] = draw.random() < 0.8
        # TensorFlow cuts multiples of 64 bytes out of a bucket without a copy; 128 x 128 fill shared memory.
        self.width = 0 if self.kind == "late subclass" else draw.choice([0, 16, 16, 128])
        exact = self.policy in ("float32", "float64")
        if draw.random() < 0.6:  # most divide by gradients, which makes large differences of small ones
            self.optimizer, self.by_name = draw.choice(SLOTTED if exact else SLOTTED[-1:]), False
        if exact and self.optimizer != "adamw" and draw.random() < 0.2:
            self.options["compression"] = draw.choice(["float16", "bfloat16"])

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
                    kernel_regularizer="l2" if self.regularized else None,
                )
            )
        for units in (self.width, self.width) if self.width else ():
            found.append(keras.layers.Dense(units, self.activation, dtype=self.policy))
        if self.adds:
            found.append(Adds(dtype=self.policy))
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
        if self.kind == "nested":
            inner = [keras.layers.Dense(3, "tanh", dtype=self.policy), keras.layers.Dense(FEATURES, dtype=self.policy)]
            h = keras.Sequential(inner)(h)
        if self.kind == "shared":
            shared = keras.layers.Dense(FEATURES, "tanh", dtype=self.policy)
            h = shared(shared(h))
        for layer in layers:
            h = layer(h)
        return keras.Model(inputs, h)

    def optimize(self, joint: bool) -> Any:
        odd = not joint and WORLD.rank > 0 and self.unlike == "settings"
        if self.by_name and not odd and (joint is False) and self.accumulate == 1:
            return DistributedOptimizer("sgd", WORLD, **self.options)
        made = {
            "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.5 * odd),
            "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9 - 0.5 * odd),
            "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1 + odd),
            "adam": lambda: keras.optimizers.Adam(RATE, epsilon=1e-2),
            "adagrad": lambda: keras.optimizers.Adagrad(RATE),
            "centered": lambda: keras.optimizers.RMSprop(RATE, momentum=0.5, centered=True, epsilon=1e-2),
            "nadam": lambda: keras.optimizers.Nadam(RATE, epsilon=1e-2),
            "optimistic": lambda: Optimistic(RATE),
            "rmsprop": lambda: keras.optimizers.RMSprop(RATE, epsilon=1e-2),
            "averaged": lambda: keras.optimizers.SGD(
                RATE, use_ema=True, ema_momentum=0.6 + 0.1 * odd, ema_overwrite_frequency=2
            ),
            "clipped": lambda: keras.optimizers.SGD(RATE, global_clipnorm=0.3 + odd),
            "scheduled": lambda: keras.optimizers.SGD(
                keras.optimizers.schedules.ExponentialDecay(RATE, 2 + odd, 0.5, staircase=True)
            ),
        }[self.optimizer]()
        if self.accumulate > 1 and (joint or self.own_accumulation):
            made.gradient_accumulation_steps = self.accumulate
        if self.policy == "mixed_float16":
            made = keras.optimizers.LossScaleOptimizer(made, initial_scale=2.0**8, dynamic_growth_steps=3)
        return self.wrap(joint, made)

    def wrap(self, joint: bool, optimizer: Any) -> Any:
        if joint:
            return optimizer
        accumulate = 1 if self.own_accumulation else self.accumulate
        return DistributedOptimizer(optimizer, WORLD, accumulate=accumulate, **self.options)

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
        if "changes" in self.callbacks:
            found.append(Changes(0.9))
        odd = not joint and WORLD.rank > 0
        if "rates" in self.callbacks or self.unlike == "learning rate later":
            found.append(ChangesRate(RATE if odd and self.unlike else RATE / 2))
        if self.unlike == "weights" and odd:
            found.append(Changes(0.9))
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

    def compile(self, joint: bool, model: Any, optimizer: Any) -> None:
        by_xla = self.unlike == "compiled by XLA" and not joint
        eager = self.eager and not by_xla
        options = {"run_eagerly": eager, "steps_per_execution": 1 if by_xla else self.at_once}
        model.compile(optimizer, "mse", jit_compile=by_xla, **options)

    def fit(self, joint: bool, model: Any, file: Path) -> Any:
        """Train, and once more, as drawn; returns the model, which may be another one."""
        x, y = self.samples(joint)
        batch = PER_RANK * (WORLD.size if joint else 1)
        options: dict[str, Any] = {"batch_size": batch, "shuffle": False, "verbose": 0}
        self.compile(joint, model, self.optimize(joint))
        model.fit(x, y, epochs=3, callbacks=self.around(joint, file), **options)
        if not self.then:
            return model
        if self.then in ("compiled again", "unfrozen"):
            for layer in model.layers if self.then == "unfrozen" else ():
                layer.trainable = True
            self.compile(joint, model, self.optimize(joint))
        if self.then == "loaded":
            own = file.with_name(f"{joint}-{WORLD.rank}.keras")
            model.save(own)
            model = keras.models.load_model(own)
            self.wrap(joint, model.optimizer)
            for weight in model.trainable_weights if not joint and WORLD.rank else ():
                weight.assign(weight + 1)  # rank 0 alone has what was trained
        begin = 3 if self.then == "resumed" else 0
        callbacks = self.around(joint, file)
        model.fit(x, y, epochs=begin + 2, initial_epoch=begin, callbacks=callbacks, **options)
        return model

    def train_in_a_loop(self, joint: bool, model: Any) -> Any:
        """Train by steps of the program, with a learning rate that changes."""
        x, y = self.samples(joint)
        batch = PER_RANK * (WORLD.size if joint else 1)
        model(x[:1])
        optimizer = self.optimize(joint)
        if not joint and self.unlike != "no broadcast":
            broadcast(WORLD, model)
        weights = model.trainable_weights
        loss_of = keras.losses.MeanSquaredError()

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
                loss += sum(tf.cast(added, loss.dtype) for added in model.losses)
                loss = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)

        by_xla = self.unlike == "compiled by XLA" and not joint
        if by_xla or not self.eager:
            step = tf.function(step, jit_compile=by_xla)
        for epoch in range(3):
            if epoch == 1 and self.optimizer != "scheduled":
                odd = not joint and WORLD.rank > 0 and self.unlike == "learning rate later"
                optimizer.learning_rate = RATE if odd else RATE / 2
            for begin in range(0, len(x), batch):
                step(tf.constant(x[begin : begin + batch]), tf.constant(y[begin : begin + batch]))
        return model

    def run(self, joint: bool, file: Path) -> list[Any]:
        """Train, and return what is seen."""
        seen: list[Any] = []
        for _ in range(1 + self.other_model):
            model = self.model(joint)
            model = self.train_in_a_loop(joint, model) if self.loop else self.fit(joint, model, file)
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
    results = {}
    for seed in sys.argv[2:]:
        results[seed] = result(seed, output.with_name("drawn.weights.h5"))
        if WORLD.rank == 0:
            output.write_text(json.dumps(results, default=str))  # what is known if one never ends

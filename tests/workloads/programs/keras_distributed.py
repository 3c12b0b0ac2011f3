"""What the optimizer and the callbacks for Keras do on these ranks, written as JSON to argv[1].

Every rank trains on its part of a joint batch; a reference trains on the whole of it in one process.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from errors import error_of
from mpi4py import MPI
from tensorflow_averaging import PER_RANK, TINY, WORLD, difference

from hidl_workloads.training.data_parallel.keras_optimizer import (
    AverageMetrics,
    BroadcastInitialState,
    DistributedOptimizer,
    prepare,
)
from hidl_workloads.training.data_parallel.tensorflow_gradients import named_weights
from hidl_workloads.training.data_parallel.weights import checksum

STEPS = 4
WORDS = 20


def model(seed: int) -> Any:
    """Convolutions and dense layers without BatchNorm, one of them frozen, and an embedding (sparse gradients)."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    image = keras.Input((6, 6, 3))
    word = keras.Input((), dtype="int32")
    h = keras.layers.Conv2D(8, 3, activation="relu")(image)
    h = keras.layers.GlobalAveragePooling2D()(h)
    h = keras.layers.Add()([keras.layers.Dense(8, trainable=False)(h), keras.layers.Embedding(WORDS, 8)(word)])
    return keras.Model([image, word], keras.layers.Dense(5)(h))


def data(rank: int | None = None) -> tuple[Any, Any]:
    """The joint data of all steps, or one rank's part of each step's batch."""
    random = np.random.default_rng(1)
    n = PER_RANK * WORLD.size
    images = random.standard_normal((STEPS, n, 6, 6, 3)).astype(np.float32)
    labels = random.integers(5, size=(STEPS, n))
    # No word twice in a batch: Keras takes the norm of a sparse gradient without adding what belongs to the same word.
    words = np.array([random.permutation(WORDS)[:n] for _ in range(STEPS)])
    if rank is not None:
        part = slice(PER_RANK * rank, PER_RANK * (rank + 1))
        images, words, labels = images[:, part], words[:, part], labels[:, part]
    return [images.reshape(-1, 6, 6, 3), words.reshape(-1)], labels.reshape(-1)


def optimizer() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)


def fit(net: Any, chosen: Any, communicator: MPI.Comm, *, steps_at_once: int = 1, eager: bool = False) -> Any:
    """Compile, where there is an optimizer to compile with, and go through the data twice."""
    if chosen is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(chosen, loss, metrics=["accuracy"], steps_per_execution=steps_at_once, run_eagerly=eager)
    alone = communicator.size == 1
    x, y = data(None if alone else communicator.rank)
    callbacks = [] if alone else [BroadcastInitialState(communicator), AverageMetrics(communicator)]
    size = len(y) // STEPS
    return net.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)


def sums(net: Any) -> list[str]:
    return WORLD.allgather(checksum(named_weights(net)))


def joint(*, steps_at_once: int = 1, eager: bool = False, **options: Any) -> dict[str, Any]:
    net, reference = model(WORLD.rank), model(0)
    distributed = DistributedOptimizer(optimizer(), WORLD, bucket_bytes=TINY, **options)
    history = fit(net, distributed, WORLD, steps_at_once=steps_at_once, eager=eager).history
    alone = optimizer()
    if "accumulate" in options:
        alone.gradient_accumulation_steps = options["accumulate"]
    own = fit(reference, alone, MPI.COMM_SELF).history
    return {
        "difference": difference(net, reference),
        "checksums": sums(net),
        "histories": WORLD.allgather(history),
        "metrics": max(abs(a - b) for name in own for a, b in zip(own[name], history[name], strict=True)),
    }


def without_averaging() -> list[str]:
    net = model(0)
    net.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = data(WORLD.rank)
    net.fit(x, y, batch_size=PER_RANK, verbose=0)
    return sums(net)


def saved_and_loaded() -> dict[str, Any]:
    """Train, save on rank 0, load on all ranks, train on; and the same without ranks and files."""
    file = Path(sys.argv[1]).with_suffix(".keras")
    net, reference = model(0), model(0)
    fit(net, DistributedOptimizer(optimizer(), WORLD), WORLD)
    if WORLD.rank == 0:
        net.save(file)
    WORLD.Barrier()
    loaded = keras.models.load_model(file)
    plain = type(loaded.optimizer) is keras.optimizers.SGD and not hasattr(loaded.optimizer, "_averaging")
    DistributedOptimizer(loaded.optimizer, WORLD)
    fit(loaded, None, WORLD)
    fit(reference, optimizer(), MPI.COMM_SELF)
    fit(reference, None, MPI.COMM_SELF)
    return {"difference": difference(loaded, reference), "checksums": sums(loaded), "plain": plain}


def overflow() -> list[str]:
    """One rank's gradient is beyond float16."""
    distributed = DistributedOptimizer(keras.optimizers.SGD(0.1), WORLD, compression="float16")
    variable = keras.Variable(np.zeros(3, np.float32))
    gradient = np.full(3, 1e9 if WORLD.rank == 0 else 1, np.float32)
    error = error_of(lambda: distributed.apply([gradient], [variable]))
    return WORLD.allgather(error + str(variable.numpy()))


def half_precision_without_scaling() -> str:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return error_of(lambda: DistributedOptimizer(keras.optimizers.SGD(0.1)))
    finally:
        keras.config.set_dtype_policy("float32")


def decayed_at_once() -> list[str]:
    """Train with weight decay, which needs no gradient, while another rank still reads its weights."""
    told = []
    for _ in range(3):
        keras.backend.clear_session()
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        chosen = DistributedOptimizer(keras.optimizers.SGD(0.1, weight_decay=0.5), WORLD)
        prepare(chosen, net.trainable_variables)
        weights = [weight.value for weight in net.trainable_variables]
        x = np.ones((2, 2), np.float32)

        @tf.function
        def step(net: Any = net, chosen: Any = chosen, weights: Any = weights, x: Any = x) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net(x))
            gradients = tape.gradient(loss, weights)
            if WORLD.rank:
                late = tf.py_function(lambda: time.sleep(0.5) or 0.0, [], tf.float32)
                with tf.control_dependencies([late]):
                    tf.print(weights[0].read_value(), output_stream=f"file://{os.devnull}")
            chosen.apply(gradients, net.trainable_variables)

        told.append(error_of(step))
    return sorted({each for rank in WORLD.allgather(told) for each in rank})


class OwnStep(keras.Model):  # type: ignore[misc]
    """Applies gradients by itself."""

    def train_step(self, samples: Any) -> dict[str, Any]:
        x, y = samples
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        return {"loss": loss}


def without_wrapper(kind: type[Any], chosen: Any) -> str:
    """Return the error of the first step, or "trained" if weights have changed."""
    keras.backend.clear_session()
    inputs = keras.Input((2,))
    net = kind(inputs, keras.layers.Dense(1)(inputs))
    net.compile(chosen, "mse")
    before = net.get_weights()
    x = np.ones((2, 2), np.float32)
    error = error_of(lambda: net.fit(x, x[:, :1], verbose=0, callbacks=[BroadcastInitialState()]))
    changed = WORLD.rank == 0 and any((a != b).any() for a, b in zip(before, net.get_weights(), strict=True))
    return "trained" if changed else error


def wrapped_after_a_refusal() -> str:
    chosen = keras.optimizers.SGD(0.1)
    without_wrapper(OwnStep, chosen)
    return without_wrapper(OwnStep, DistributedOptimizer(chosen))


if __name__ == "__main__":
    results = {
        "joint": joint(),
        "accumulated": joint(accumulate=2),
        "eager": joint(eager=True),
        "several steps at once": joint(steps_at_once=2),
        "float16": joint(compression="float16"),
        "bfloat16": joint(compression="bfloat16"),
        "without averaging": without_averaging(),
        "saved": saved_and_loaded(),
        "overflow": overflow(),
        "twice": error_of(lambda: DistributedOptimizer(DistributedOptimizer(optimizer()))),
        "half precision": half_precision_without_scaling(),
        "decayed at once": decayed_at_once(),
        "copied": error_of(lambda: copy.deepcopy(DistributedOptimizer(optimizer()))),
        "pickled": error_of(lambda: pickle.dumps(DistributedOptimizer(optimizer()))),
        "not wrapped": without_wrapper(keras.Model, optimizer()),
        "not wrapped, own step": without_wrapper(OwnStep, optimizer()),
        "scaled outside": without_wrapper(
            keras.Model, keras.optimizers.LossScaleOptimizer(DistributedOptimizer(optimizer()))
        ),
        "wrapped after a refusal": wrapped_after_a_refusal(),
    }
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))

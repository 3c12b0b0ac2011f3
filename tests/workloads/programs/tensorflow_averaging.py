"""What data-parallel training with TensorFlow does to small models on these ranks, written as JSON to argv[1].

Every rank trains on its part of a joint batch; a reference trains on the whole of it in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

from hidl_workloads.training.data_parallel.tensorflow_gradients import GradientAverager, broadcast, named_weights
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
PER_RANK = 4
TINY = 1000


def model(seed: int) -> Any:
    """Convolutions and dense layers without BatchNorm; the second output is not used by the loss."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6, 6, 3))
    h = keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    h = keras.layers.GlobalAveragePooling2D()(h)
    return keras.Model(inputs, [keras.layers.Dense(5)(h), keras.layers.Dense(5, name="unused")(h)])


def batch() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    n = PER_RANK * WORLD.size
    return random.standard_normal((n, 6, 6, 3), np.float32), random.integers(5, size=n)


def mine(array: Any) -> Any:
    return array[PER_RANK * WORLD.rank : PER_RANK * (WORLD.rank + 1)]


def train(net: Any, x: Any, y: Any, communicator: MPI.Comm, steps: int = 3) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(net.trainable_variables)
    averager = GradientAverager(communicator, net.trainable_variables, TINY)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            logits, _ = net(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, [variable.value for variable in net.trainable_variables])
        optimizer.apply(averager.average(gradients), net.trainable_variables)

    for _ in range(steps):
        step()
    averager.close()


def difference(one: Any, other: Any) -> float:
    own = max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in zip(one.weights, other.weights, strict=True))
    return WORLD.allreduce(own, MPI.MAX)


def joint_difference() -> float:
    x, y = batch()
    net, reference = model(0), model(0)
    train(net, mine(x), mine(y), WORLD)
    train(reference, x, y, MPI.COMM_SELF)
    return difference(net, reference)


def broadcast_difference() -> float:
    net = model(WORLD.rank)
    broadcast(WORLD, net)
    return difference(net, model(0))


def checksums(average: bool) -> list[str]:
    x, y = batch()
    net = model(WORLD.rank)
    broadcast(WORLD, net)
    train(net, mine(x), mine(y), WORLD if average else MPI.COMM_SELF)
    return WORLD.allgather(checksum(named_weights(net)))


def constant_gradients() -> list[float]:
    """The gradient of a sum is a constant of the traced function: averaging must not change it from call to call."""
    variable = keras.Variable(np.zeros(300, np.float32))
    averager = GradientAverager(WORLD, [variable], TINY)

    @tf.function
    def averages() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable.value)
        return averager.average([tape.gradient(loss, variable.value)])

    return [float(averages()[0][0]) for _ in range(3)]


def kept_averages() -> list[float]:
    """TensorFlow gives a variable the memory of what is assigned: later steps must not write there."""
    variable, kept = (keras.Variable(np.zeros(320, np.float32)) for _ in range(2))
    averager = GradientAverager(WORLD, [variable], TINY)

    @tf.function
    def step(value: Any, keep: bool) -> Any:
        [average] = averager.average([tf.fill([320], value)])
        return kept.value.assign(average) if keep else average

    step(tf.constant(1.0), True)
    return [float(step(tf.constant(2.0), False)[0]), float(kept.numpy().max())]


if __name__ == "__main__":
    results = {
        "joint": joint_difference(),
        "broadcast": broadcast_difference(),
        "checksums": checksums(average=True),
        "checksums_without_average": checksums(average=False),
        "constant_gradients": constant_gradients(),
        "kept_averages": kept_averages(),
    }
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))

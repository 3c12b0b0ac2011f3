"""The first step on a ResNet of version 2 in one process: ``first_step_alone WAY DEPTH BATCH``.

WAY is ``keras``, its ``train_on_batch``, or ``lean``: loss, gradients and update in one function of TensorFlow, with
nothing that Keras adds around them (metrics, XLA), on one thread. Prints {"seconds": of the step, "mebibytes": the
process' greatest memory} as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hidl_workloads.hyparflow.models.resnet import resnet


def _keras(model: Any, optimizer: Any, loss: Any) -> Callable[[Any, Any], Any]:
    model.compile(optimizer, loss)
    step: Callable[[Any, Any], Any] = model.train_on_batch
    return step


def _lean(model: Any, optimizer: Any, loss: Any) -> Callable[[Any, Any], Any]:
    variables = model.trainable_variables
    optimizer.build(variables)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            total = loss(labels, model(images, training=True)) + sum(model.losses)
        optimizer.apply(tape.gradient(total, variables), variables)
        return total

    compiled: Callable[[Any, Any], Any] = tf.function(step, autograph=False)
    return compiled


def main(way: str, depth: int, batch: int) -> None:
    """Measure, and print."""
    if way == "lean":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model = resnet(2, depth)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = {"keras": _keras, "lean": _lean}[way](model, keras.optimizers.SGD(0.1, momentum=0.9), loss)
    random = np.random.default_rng(1)
    images, labels = random.standard_normal((batch, 32, 32, 3), np.float32), random.integers(0, 10, batch)
    before = time.perf_counter()
    step(images, labels)
    seconds = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # which Linux counts in KiB
    print(json.dumps({"seconds": seconds, "mebibytes": peak}))


main(sys.argv[1], *map(int, sys.argv[2:]))

"""Keras' own first step on a ResNet of version 2, in one process: ``first_step_keras DEPTH BATCH``.

Prints {"seconds": of the first ``train_on_batch``, "mebibytes": the process' greatest memory} as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import keras
import numpy as np

from hidl_workloads.hyparflow.models.resnet import resnet


def main(depth: int, batch: int) -> None:
    """Measure, and print."""
    keras.utils.set_random_seed(0)
    model = resnet(2, depth)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    random = np.random.default_rng(1)
    images, labels = random.standard_normal((batch, 32, 32, 3), np.float32), random.integers(0, 10, batch)
    before = time.perf_counter()
    model.train_on_batch(images, labels)
    seconds = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # which Linux counts in KiB
    print(json.dumps({"seconds": seconds, "mebibytes": peak}))


main(*map(int, sys.argv[1:]))

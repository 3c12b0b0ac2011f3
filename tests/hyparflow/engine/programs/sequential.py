"""What parallel training is held against: one process, the whole model, micro-batch after micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def train(
    model: keras.Model, data: Callable[..., Any], *, steps: int, micro_batches: int, size: int, replicas: int
) -> tuple[list[dict[str, np.ndarray]], list[float]]:
    """Train by accumulating gradients. Returns each replica's variables by path at the end, and each step's loss.

    The replicas differ in BatchNorm's moving statistics only: each has advanced them by its own micro-batches.
    ``micro_batches``: of a step, over all replicas, of ``size`` rows.
    """
    seeds = [v for v in model.non_trainable_variables if "seed" in v.path]
    moving = [v for v in model.non_trainable_variables if "seed" not in v.path]
    states = [[v.numpy() for v in moving]] * replicas

    @tf.function
    def gradients(inputs: Any, targets: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = model(inputs, training=True)
            loss = model.compute_loss(inputs, targets, predictions, weights) / micro_batches
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    losses = []
    for step in range(steps):
        batch = data(step, micro_batches * size)
        sums, total = None, 0.0
        for micro_batch in range(micro_batches):
            replica = micro_batch * replicas // micro_batches
            _assign(moving, states[replica])
            rows = slice(micro_batch * size, (micro_batch + 1) * size)
            loss, found = gradients(*(_part(arrays, rows) for arrays in batch))
            found = [np.asarray(tf.convert_to_tensor(each)) for each in found]
            sums = found if sums is None else [one + other for one, other in zip(sums, found, strict=True)]
            total += float(loss)
            states = [*states[:replica], [v.numpy() for v in moving], *states[replica + 1 :]]
        losses.append(total)
        model.optimizer.apply([tf.convert_to_tensor(each) for each in sums], model.trainable_variables)
    common = {v.path: v.numpy() for v in [*model.trainable_variables, *seeds]}
    return [common | {v.path: x for v, x in zip(moving, state, strict=True)} for state in states], losses


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _part(arrays: Any, rows: slice) -> Any:
    parts = [None if array is None else tf.constant(array[rows]) for array in arrays]
    if all(part is None for part in parts):
        return None
    return parts if len(parts) > 1 else parts[0]

"""What parallel training is held against: one process, the whole model, micro-batch after micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hyparflow.graph.calls import variables_of


def train(
    model: keras.Model, data: Callable[..., Any], *, steps: int, micro_batches: int, size: int, replicas: int
) -> tuple[list[dict[str, np.ndarray]], list[float]]:
    """Train by accumulating gradients. Returns each replica's variables by name at the end, and each step's loss.

    The replicas differ in BatchNorm's moving statistics only: each has advanced them by its own micro-batches.
    ``micro_batches``: of a step, over all replicas, of ``size`` rows.
    """
    seeds = [v for v in model.non_trainable_variables if "seed" in v.path]
    moving = [v for v in model.non_trainable_variables if "seed" not in v.path]
    states = [[v.numpy() for v in moving]] * replicas

    def gradients(inputs: Any, targets: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = model(inputs, training=True)
            loss = model.compute_loss(inputs, targets, predictions, weights) / micro_batches
        return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])

    sums = [tf.Variable(tf.zeros_like(v.value)) for v in model.trainable_variables]

    @tf.function
    def accumulate(inputs: Any, targets: Any, weights: Any) -> Any:
        loss, found = gradients(inputs, targets, weights)
        for total, gradient in zip(sums, found, strict=True):
            total.assign_add(gradient)
        return loss

    @tf.function
    def update() -> None:
        model.optimizer.apply([total.read_value() for total in sums], model.trainable_variables)
        for total in sums:
            total.assign(tf.zeros_like(total))

    model.optimizer.build(model.trainable_variables)
    losses = []
    for step in range(steps):
        batch = data(step, micro_batches * size)
        losses.append(0.0)
        for micro_batch in range(micro_batches):
            replica = micro_batch * replicas // micro_batches
            if replicas > 1:
                _assign(moving, states[replica])
            rows = slice(micro_batch * size, (micro_batch + 1) * size)
            losses[-1] += float(accumulate(*(_part(arrays, rows) for arrays in batch)))
            if replicas > 1:
                states[replica] = [v.numpy() for v in moving]
        update()
    if replicas == 1:
        states = [[v.numpy() for v in moving]]
    names = {id(v): name for name, v in variables_of(model).items()}
    common = {names[id(v)]: v.numpy() for v in [*model.trainable_variables, *seeds]}
    return [common | {names[id(v)]: x for v, x in zip(moving, state, strict=True)} for state in states], losses


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _part(arrays: Any, rows: slice) -> Any:
    parts = [None if array is None else tf.constant(array[rows]) for array in arrays]
    if all(part is None for part in parts):
        return None
    return parts if len(parts) > 1 else parts[0]

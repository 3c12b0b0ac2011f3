"""The truth that every partitioning is held against: the whole model, micro-batch after micro-batch, one update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras import tree


class Sequential:
    """Gradient accumulation with nothing but Keras and TensorFlow, eagerly: for small models that is the fastest.

    Arrays have the rows of all global micro-batches one after the other. Targets and sample weights are flat lists in
    the order of the model's outputs.
    """

    def __init__(self, model: Any, total: int) -> None:
        self.model = model
        self.total = total
        self.losses: list[float] = []

    def step(self, inputs: Sequence[Any], targets: Sequence[Any], weights: Sequence[Any] | None = None) -> None:
        """One step of training."""
        size = len(inputs[0]) // self.total
        gradients: list[Any] = []
        for index in range(self.total):
            rows = slice(index * size, (index + 1) * size)
            share = [[tf.constant(array[rows]) for array in arrays] for arrays in (inputs, targets, weights or [])]
            loss, found = self._gradients(*share)
            gradients = [a + b for a, b in zip(gradients, found, strict=True)] if gradients else list(found)
            self.losses.append(float(loss))
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def _gradients(
        self, inputs: Sequence[Any], targets: Sequence[Any], weights: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        model = self.model
        with tf.GradientTape() as tape:
            predicted = model(tree.pack_sequence_as(model.input, list(inputs)), training=True)
            y = tree.pack_sequence_as(predicted, list(targets))
            sample_weight = tree.pack_sequence_as(predicted, list(weights)) if weights else None
            loss = model.compute_loss(y=y, y_pred=predicted, sample_weight=sample_weight)
            scaled = model.optimizer.scale_loss(loss) / self.total
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(scaled, model.trainable_variables)]

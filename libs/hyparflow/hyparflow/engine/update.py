"""The update of a rank's own variables by Keras' optimizer, and the values that all partitions must agree on.

The optimizer is Keras' own (``optimizer.apply``). Weight decay, EMA, schedules, ``clipnorm`` and ``clipvalue`` depend
only on a rank's own variables. The global norm depends on all of them, as does the check for non-finite gradients (loss
scale of mixed precision). Both follow from one sum of squares over the replica's partitions, which is non-finite if a
gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from hyparflow.backends import Buffer, Slot
from hyparflow.engine.world import wait
from hyparflow.errors import UnsupportedModel


class Update:
    """The optimizer on one rank."""

    def __init__(
        self,
        optimizer: Any,
        variables: Mapping[str, Any],
        counted: Sequence[str],
        replica: Any,
    ) -> None:
        """Build the optimizer for this rank's variables.

        Args:
            optimizer: The compiled model's optimizer; its ``global_clipnorm`` is applied here instead.
            variables: Name -> trainable Keras variable of this rank.
            counted: Names of the variables that this rank counts in global norms; over the replica, each is counted
                once.
            replica: The communicator of the replica's ranks.

        Raises:
            UnsupportedModel: ``gradient_accumulation_steps`` is set, or the optimizer was built for other variables.
        """
        import keras

        self.optimizer = optimizer
        self._inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._scaled = self._inner is not optimizer
        self._replica = replica
        # Keras excludes variables that are overwritten with their gradients from clipping.
        self._counted = frozenset(name for name in counted if not variables[name].overwrite_with_gradient)
        self._names = tuple(variables)
        self._variables = list(variables.values())
        if getattr(self._inner, "gradient_accumulation_steps", None):
            raise UnsupportedModel(
                f"{self._inner.name} accumulates gradients over steps (gradient_accumulation_steps): "
                "remove it, and use more micro-batches instead"
            )
        self._clip = self._inner.global_clipnorm
        self._inner.global_clipnorm = None
        if not self._variables:
            # A dummy variable keeps the counters of all ranks equal, because Keras skips a step without gradients.
            known = self._inner._trainable_variables if optimizer.built else []
            nothing = [each for each in known if each.path == "hyparflow_nothing"]
            self._variables = nothing or [keras.Variable(np.zeros((), np.float32), name="hyparflow_nothing")]
        if not optimizer.built:
            optimizer.build(self._variables)
        elif [v.path for v in self._inner._trainable_variables] != [v.path for v in self._variables]:
            raise UnsupportedModel(
                f"{optimizer.name} was built for other variables than those of this plan: compile the model again"
            )
        self._apply: Any = None
        self._trained = self._names

    def leave_alone(self, without: Container[str]) -> None:
        """Exclude these variables from updates, as Keras does if a gradient is None; call this before the first update.

        Raises:
            UnsupportedModel: This leaves no variable on this rank, and its optimizer has more state than that of its
                variables.
        """
        self._trained = tuple(name for name in self._names if name not in without)
        if self._names and not self._trained and (self._scaled or self._inner.use_ema):
            raise UnsupportedModel(
                f"the loss depends on no variable of a partition ({self._names[0]}, ...), but {self.optimizer.name} "
                "scales losses or averages weights: freeze these layers, or use another assignment"
            )

    @property
    def variables(self) -> Mapping[str, Any]:
        """Path -> variable of the optimizer: iterations, learning rate, slots of this rank's variables, loss scale."""
        return {v.path: v for v in self.optimizer.variables if "hyparflow_nothing" not in v.path}

    @property
    def loss_scale(self) -> float:
        """The factor to multiply losses by; the optimizer divides the gradients by it."""
        return float(self.optimizer.scale_loss(1.0))

    def __call__(self, buffers: Sequence[Buffer], places: Mapping[str, tuple[int, Slot]]) -> tuple[bool, float | None]:
        """Update the variables; collective over the replica's partitions.

        Args:
            buffers: The summed gradients, with the same shapes in every call.
            places: Name -> buffer and slot, for every variable.

        Returns:
            True if the update was done (False: the gradients were not finite, and the loss scale was halved), and the
                global norm if gradients are clipped by it, else None.
        """
        updated, norm, factor = True, None, 1.0
        if self._clip is not None or self._scaled:
            scale = self.loss_scale
            norm = math.sqrt(self._square(buffers, places)) / scale
            updated = math.isfinite(norm) or not self._scaled
            # As in Keras, a non-finite norm makes every gradient NaN; with a loss scale, the update is skipped.
            factor = math.nan if not math.isfinite(norm) else self._shrink(norm)
        if self._apply is None:
            self._apply = self._compile(buffers, places)
        self._apply([buffer.array for buffer in buffers], np.float64(factor))
        return updated, norm if self._clip is not None else None

    def _shrink(self, norm: float) -> float:
        return 1.0 if self._clip is None or norm <= self._clip else self._clip / norm

    def _square(self, buffers: Sequence[Buffer], places: Mapping[str, tuple[int, Slot]]) -> float:
        """Return the sum of squares of all gradients of the replica, with each variable counted once."""
        from mpi4py import MPI

        total = np.zeros(1)
        for name in self._names:
            if name in self._counted:
                index, slot = places[name]
                gradient = buffers[index].array[slot.offset : slot.offset + slot.size].astype(np.float64)
                total += np.dot(gradient, gradient)
        wait(self._replica.Iallreduce(MPI.IN_PLACE, total, MPI.SUM))
        return float(total[0])

    def _compile(self, buffers: Sequence[Buffer], places: Mapping[str, tuple[int, Slot]]) -> Any:
        """Compile the update to a TensorFlow program."""
        import tensorflow as tf

        trained = frozenset(self._trained)

        def apply(flat: Sequence[tf.Tensor], factor: tf.Tensor) -> None:
            parts: list[dict[str, tf.Tensor]] = []
            for array, buffer in zip(flat, buffers, strict=True):
                pieces = tf.split(array, [slot.size for slot in buffer.slots])
                parts.append({slot.variable: piece for slot, piece in zip(buffer.slots, pieces, strict=True)})
            if self._names and not self._trained:
                self._inner.iterations.assign_add(1)
                return
            gradients = [tf.reshape(parts[places[n][0]][n], places[n][1].shape) for n in self._trained]
            variables = [each for name, each in zip(self._names, self._variables, strict=False) if name in trained]
            if not gradients:
                gradients, variables = [tf.zeros((), tf.float32)], self._variables
            if self._clip is not None or self._scaled:
                gradients = [
                    each if variable.overwrite_with_gradient else each * tf.cast(factor, each.dtype)
                    for each, variable in zip(gradients, variables, strict=True)
                ]
            self.optimizer.apply(gradients, variables)

        return tf.function(apply, autograph=False)

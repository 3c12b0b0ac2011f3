"""TensorFlow's gradients, averaged over the ranks between the backward pass and the update of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.data_parallel import weights
from hidl_workloads.data_parallel.allreduce import Allreduce
from hidl_workloads.data_parallel.buckets import Gradient, plan

_ALIGNMENT = 64


def broadcast(communicator: MPI.Comm, model: Any) -> None:
    """Give every rank the variables of rank 0's Keras ``model``."""
    values = [np.array(variable.numpy()) for variable in model.variables]
    weights.broadcast(communicator, values)
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


def named_weights(model: Any) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield every trainable variable's path and value, as a copy, in the model's order."""
    for variable in model.trainable_variables:
        yield variable.path, variable.numpy()


class GradientAverager:
    """Averages the gradients of Keras ``variables`` over ``communicator``, in three steps.

    ::

        @tf.function
        def forward_backward():
            with tf.GradientTape() as tape:
                loss = ...
            return averager.backward(tape, loss)

        @tf.function
        def apply(flat):
            optimizer.apply(averager.restore(flat), variables)

        apply(averager.average(forward_backward()))

    A variable that got no gradient on this rank counts as zero. On one rank nothing is flattened or sent. The
    constructor and ``close`` are collective.
    """

    def __init__(self, communicator: MPI.Comm, variables: Sequence[Any], bucket_bytes: int) -> None:
        self._size = communicator.size
        self._allreduce = Allreduce(communicator)
        self._variables = list(variables)
        gradients = [Gradient(v.path, int(np.prod(v.shape)), v.dtype) for v in self._variables]
        self._buckets = plan(gradients, bucket_bytes) if self._size > 1 else ()
        self._totals = [_aligned(bucket.size, np.dtype(bucket.dtype)) for bucket in self._buckets]

    def backward(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        """Return this rank's part of the average gradients, in flat buffers; for use inside a ``tf.function``."""
        gradients = tape.gradient(
            loss,
            [variable.value for variable in self._variables],
            # The division by the number of ranks costs nothing at the start of the backward pass.
            output_gradients=tf.ones_like(loss) / self._size,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        if self._size == 1:
            return list(gradients)
        return [tf.concat([tf.reshape(gradients[i], [-1]) for i in bucket.members], 0) for bucket in self._buckets]

    def average(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over the ranks of ``flat`` (eager tensors on the CPU), valid until the next call.

        MPI reads TensorFlow's memory and TensorFlow reads MPI's, both through DLPack. The sums have buffers of their
        own: a TensorFlow tensor must not be changed in place, it may be a constant that all calls of a function share.
        """
        if self._size == 1:
            return list(flat)
        for tensor, total in zip(flat, self._totals, strict=True):
            # One after the other: a buffer that fits into the last-level cache stays there until its sum is complete.
            self._allreduce.start(total, part=np.from_dlpack(tensor))
            self._allreduce.finish()
        return [tf.experimental.dlpack.from_dlpack(total.__dlpack__()) for total in self._totals]

    def restore(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients, in the order and the shapes of the variables; for use inside a ``tf.function``."""
        if self._size == 1:
            return list(flat)
        gradients: dict[int, tf.Tensor] = {}
        for bucket, tensor in zip(self._buckets, flat, strict=True):
            for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                shape = self._variables[index].shape
                gradients[index] = tf.reshape(tensor[offset : offset + int(np.prod(shape))], shape)
        return [gradients[index] for index in range(len(self._variables))]

    def close(self) -> None:
        """Give the communicator back."""
        self._allreduce.close()


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that starts where TensorFlow expects its tensors to: at a multiple of 64 bytes."""
    memory = np.zeros(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size * dtype.itemsize].view(dtype)

"""Data-parallel TensorFlow: gradients are averaged in buckets between the backward pass and the optimizer.

Gradients come out of a ``tf.function`` together, so there is no backward pass left to overlap with; the buckets overlap
with each other. MPI works on the tensors' own memory, through DLPack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hidl_workloads.data_parallel import buckets


class GradientAverage:
    """Averages lists of gradients over all ranks; ``bucket_bytes`` as for PyTorch."""

    def __init__(self, world: Any, *, bucket_bytes: int) -> None:
        self._reducer = buckets.Reducer(world)
        self._bucket_bytes = bucket_bytes

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the averages of dense float32 or float64 ``gradients``, in the same order."""
        size = self._reducer.world.size
        if size == 1:
            return list(gradients)
        backwards = list(reversed(gradients))
        flats = []
        for run in buckets.split([g.dtype.size * int(tf.size(g)) for g in backwards], self._bucket_bytes):
            flat = tf.concat([tf.reshape(backwards[i], [-1]) for i in run], axis=0) / size
            self._reducer.start(_memory(flat))
            flats.append((run, flat))
        self._reducer.finish()
        averages: list[tf.Tensor] = []
        for run, flat in flats:
            parts = tf.split(flat, [int(tf.size(backwards[i])) for i in run])
            averages += [tf.reshape(part, backwards[i].shape) for i, part in zip(run, parts, strict=True)]
        return averages[::-1]


def _memory(tensor: tf.Tensor) -> np.ndarray[Any, Any]:
    """A dense tensor's own memory on the CPU, flat and writable: NumPy's view through DLPack would be read-only."""
    from mpi4py import MPI

    view = np.from_dlpack(tensor)
    return np.frombuffer(MPI.memory.fromaddress(view.ctypes.data, view.nbytes), dtype=view.dtype)


def broadcast(model: Any, world: Any) -> None:
    """Give every rank rank 0's weights."""
    weights = [np.ascontiguousarray(weight) for weight in model.get_weights()]
    buckets.broadcast(world, weights)
    model.set_weights(weights)


def checksum(model: Any) -> str:
    """The checksum of all weights that are trained."""
    return buckets.checksum((variable.path, variable.numpy()) for variable in model.trainable_variables)

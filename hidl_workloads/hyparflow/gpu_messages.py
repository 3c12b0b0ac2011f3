"""hyparflow's messages between stages in the rank's GPU, which a GPU-aware MPI reads and writes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from hidl_workloads.training.data_parallel.tensorflow_devices import TensorFlowGpu


class GpuMemory:
    """See ``hyparflow.backends.MessageMemory``; its arrays are TensorFlow's."""

    def __init__(self, gpu: TensorFlowGpu) -> None:
        self._gpu = gpu

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tf.Tensor:
        """See ``MessageMemory``."""
        return self._gpu.on_device(np.zeros(shape, dtype))

    def first_rows(self, array: tf.Tensor, rows: int | None) -> tf.Tensor:
        """See ``MessageMemory``."""
        with tf.device(self._gpu.place):
            return array[:rows]

    def to_mpi(self, array: tf.Tensor) -> object:
        """See ``MessageMemory``."""
        return [self._gpu.export(array), math.prod(array.shape) * array.dtype.size, MPI.BYTE]

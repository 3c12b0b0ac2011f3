"""Devices as the averager of TensorFlow's gradients uses them: where variables are, and a GPU's memory for MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hidl_workloads import gpu_aware
from hidl_workloads.training.data_parallel import gpu_proof

HOST = "/CPU:0"


def place_of(variables: Sequence[Any]) -> str:
    """Return the device of Keras ``variables``: the host if they are on several."""
    places = {variable.value.device for variable in variables}
    return places.pop() if len(places) == 1 else HOST


def is_host(place: str) -> bool:
    """Return True if tensors there are in the host's memory, which MPI and NumPy read directly."""
    return place.upper().endswith("CPU:0")


def gpu(number: int) -> TensorFlowGpu:
    """Return a GPU that this process sees, before TensorFlow's first operation; it takes memory as it is needed."""
    tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("GPU")[number], True)
    return TensorFlowGpu(f"/GPU:{number}")


class TensorFlowGpu:
    """See ``gpu_path.GpuAccess``; of CUDA, or of ROCm, which TensorFlow calls by the same name."""

    def __init__(self, place: str) -> None:
        self.place = place

    def wait(self) -> None:
        """Wait for all that the GPU was given to do: MPI knows nothing of its queue."""
        tf.test.experimental.sync_devices()

    def on_device(self, array: NDArray[Any]) -> tf.Tensor:
        """See ``gpu_proof.Memory``."""
        with tf.device(self.place):
            values = tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(array))  # otherwise, it may share the array's memory
        self.wait()
        return values

    def on_host(self, values: tf.Tensor) -> NDArray[Any]:
        """See ``gpu_proof.Memory``."""
        return np.array(values.numpy())

    def export(self, values: tf.Tensor) -> object:
        """See ``gpu_proof.Memory``."""
        return _DeviceMemory(values)

    def ask_mpi(self) -> gpu_aware.Answer:
        """See ``gpu_path.GpuAccess``."""
        return gpu_aware.ask("rocm" if tf.test.is_built_with_rocm() else "cuda")

    def survives(self) -> str | None:
        """See ``gpu_path.GpuAccess``."""
        return gpu_proof.survives("tensorflow", int(self.place.rpartition(":")[2]))


class _DeviceMemory:
    """A tensor with DLPack only: of the tensor itself, mpi4py would use the buffer, a copy on the host.

    The caller has waited for the device.
    """

    def __init__(self, values: tf.Tensor) -> None:
        self._values = values

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return tf.experimental.dlpack.to_dlpack(self._values)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._values.__dlpack_device__()
        return device

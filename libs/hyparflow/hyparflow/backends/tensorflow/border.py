"""The border between TensorFlow's memory and NumPy's: no copies where it can be helped."""

from __future__ import annotations

from typing import Any

from hyparflow.errors import RequestError

#: TensorFlow's kernels need this alignment (EIGEN_MAX_ALIGN_BYTES); what is not aligned so is copied.
ALIGNMENT = 64


def require_host(device: str) -> None:
    """Raise RequestError where TensorFlow keeps a tensor elsewhere: MPI would sum a copy, which nobody reads."""
    if "CPU:" not in device.upper():
        name = device.rpartition("device:")[2]
        raise RequestError(
            f"TensorFlow computes on {name}, and hyparflow on processors alone: hide the GPUs from this process by "
            "CUDA_VISIBLE_DEVICES= or tf.config.set_visible_devices([], 'GPU')"
        )


def host_view(tensor: Any) -> Any:
    """An eager tensor's own memory as a NumPy array (any dtype), which keeps the tensor alive.

    ``EagerTensor.numpy()`` is a copy of just this. NumPy's DLPack and the buffer protocol give read-only arrays, and
    neither knows bfloat16.
    """
    return tensor._numpy()


def tensor_of(array: Any, dtype: Any) -> Any:
    """A tensor over an array's memory, or over a copy where that does not fit (alignment, dtype, layout, read-only)."""
    import numpy as np
    import tensorflow as tf

    wanted = tf.as_dtype(dtype)
    array = np.ascontiguousarray(array, dtype=wanted.as_numpy_dtype)
    if array.ctypes.data % ALIGNMENT or not array.flags.writeable or wanted == tf.bfloat16:
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

"""The border between TensorFlow's memory and NumPy's: no copies where it can be helped."""

from __future__ import annotations

from typing import Any

#: TensorFlow's kernels need this alignment (EIGEN_MAX_ALIGN_BYTES); what is not aligned so is copied.
ALIGNMENT = 64


def is_host(device: str) -> bool:
    """Whether what TensorFlow keeps on this device is in the host's memory, which MPI reads and writes."""
    return device.upper().endswith("CPU:0")


def default_device() -> str:
    """Where TensorFlow puts what nobody says anything about."""
    import tensorflow as tf

    device: str = tf.zeros(()).device
    return device


def await_device() -> None:
    """Wait for what a GPU was given to do: until then it may read the arrays that it was fed with."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def host_view(tensor: Any) -> Any:
    """An eager tensor's own memory as a NumPy array (any dtype), which keeps the tensor alive; of a GPU's, a copy.

    ``EagerTensor.numpy()`` is a copy of just this. NumPy's DLPack and the buffer protocol give read-only arrays, and
    neither knows bfloat16.
    """
    return tensor._numpy()


def tensor_of(array: Any, dtype: Any) -> Any:
    """A tensor over an array's memory, or over a copy where that does not fit (alignment, dtype, layout, read-only).

    What is a tensor already stays itself.
    """
    import numpy as np
    import tensorflow as tf

    if isinstance(array, tf.Tensor):
        return array
    wanted = tf.as_dtype(dtype)
    array = np.ascontiguousarray(array, dtype=wanted.as_numpy_dtype)
    if array.ctypes.data % ALIGNMENT or not array.flags.writeable or wanted == tf.bfloat16:
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

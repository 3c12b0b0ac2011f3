"""Memory that TensorFlow shares with NumPy and MPI, copied only if necessary.

Gradients accumulate in flat variables, whose memory MPI can reduce in place; on a GPU, a copy on the host is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyparflow.backends import Buffer, Slot

#: TensorFlow's kernels need this alignment (EIGEN_MAX_ALIGN_BYTES); unaligned arrays are copied.
ALIGNMENT = 64


def is_host(device: str) -> bool:
    """Return whether TensorFlow keeps values on this device in host memory, which MPI can access."""
    return device.upper().endswith("CPU:0")


def default_device() -> str:
    """Return the device on which TensorFlow places values by default."""
    import tensorflow as tf

    device: str = tf.zeros(()).device
    return device


def await_device() -> None:
    """Wait for pending work on the GPU, which may read the arrays that it was fed with until then."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def host_view(tensor: Any) -> Any:
    """Return an eager tensor's memory as a NumPy array of any dtype, which keeps the tensor alive; copy it from a GPU.

    ``EagerTensor.numpy()`` is a copy of this array. NumPy's DLPack and the buffer protocol return read-only arrays and
    do not support bfloat16.
    """
    return tensor._numpy()


def tensor_of(array: Any, dtype: Any) -> Any:
    """Return a tensor over an array's memory, or over a copy if alignment, dtype, layout or access do not permit that.

    A tensor is returned unchanged.
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


class Accumulator:
    """The gradients of several variables of one dtype, in one flat ``tf.Variable``."""

    def __init__(self, slots: tuple[Slot, ...], dtype: str) -> None:
        import tensorflow as tf

        self.slots = slots
        last = slots[-1]
        self.flat = tf.Variable(tf.zeros([last.offset + last.size], dtype), trainable=False)
        self._in_host = is_host(self.flat.device)
        self._copy: Any = None  # host copy of a GPU's memory

    def add(self, gradients: Mapping[str, Any]) -> Any:
        """Return the operation, in the graph that is being built, that adds gradients (by variable)."""
        import tensorflow as tf

        all_in_a_row = tf.constant([-1])
        flat = [tf.reshape(gradients[slot.variable], all_in_a_row) for slot in self.slots]
        return self.flat.assign_add(flat[0] if len(flat) == 1 else tf.concat(flat, 0), read_value=False)

    def zero(self) -> None:
        """Set the gradients to zero."""
        import tensorflow as tf

        self._copy = None
        self.flat.assign(tf.zeros_like(self.flat))

    def buffer(self) -> Buffer:
        """Return the memory as a writable array; for a GPU, a copy that stays the same until ``zero``."""
        if self._in_host:
            return Buffer(host_view(self.flat.read_value()), self.slots)
        if self._copy is None:
            self._copy = self.flat.numpy()
        return Buffer(self._copy, self.slots)


def accumulators(variables: Mapping[str, Any], bucket_bytes: int) -> tuple[Accumulator, ...]:
    """Create accumulators for these variables in this order, each of one dtype and about ``bucket_bytes``."""
    buckets: list[tuple[str, list[Slot]]] = []
    open_buckets: dict[str, int] = {}
    for name, variable in variables.items():
        dtype, shape = variable.dtype, tuple(int(extent) for extent in variable.shape)
        size = 1
        for extent in shape:
            size *= extent
        bucket = open_buckets.get(dtype)
        if bucket is None or _bytes(buckets[bucket][1], dtype) + _width(dtype) * size > bucket_bytes:
            bucket = open_buckets[dtype] = len(buckets)
            buckets.append((dtype, []))
        slots = buckets[bucket][1]
        slots.append(Slot(name, slots[-1].offset + slots[-1].size if slots else 0, size, shape))
    return tuple(Accumulator(tuple(slots), dtype) for dtype, slots in buckets)


def _width(dtype: str) -> int:
    import tensorflow as tf

    width: int = tf.as_dtype(dtype).size
    return width


def _bytes(slots: Sequence[Slot], dtype: str) -> int:
    return (slots[-1].offset + slots[-1].size) * _width(dtype) if slots else 0

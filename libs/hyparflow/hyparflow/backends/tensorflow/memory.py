"""The border between TensorFlow's memory and NumPy's: no copies where it can be helped.

Gradients that accumulate in flat variables, whose memory MPI can reduce in place; on a GPU, a copy on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyparflow.backends import Buffer, Slot

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


class Accumulator:
    """Gradients of some variables of one dtype, one after the other in one flat ``tf.Variable``."""

    def __init__(self, slots: tuple[Slot, ...], dtype: str) -> None:
        import tensorflow as tf

        self.slots = slots
        last = slots[-1]
        self.flat = tf.Variable(tf.zeros([last.offset + last.size], dtype), trainable=False)
        self._in_host = is_host(self.flat.device)
        self._copy: Any = None  # on the host, of a GPU's memory

    def add(self, gradients: Mapping[str, Any]) -> Any:
        """The operation, in the graph that is being built, that adds gradients (by variable)."""
        import tensorflow as tf

        all_in_a_row = tf.constant([-1])
        flat = [tf.reshape(gradients[slot.variable], all_in_a_row) for slot in self.slots]
        return self.flat.assign_add(flat[0] if len(flat) == 1 else tf.concat(flat, 0), read_value=False)

    def zero(self) -> None:
        """Begin again."""
        import tensorflow as tf

        self._copy = None
        self.flat.assign(tf.zeros_like(self.flat))

    def buffer(self) -> Buffer:
        """Its memory as an array that can be written to. Of a GPU's it is a copy, the same one until ``zero``."""
        if self._in_host:
            return Buffer(host_view(self.flat.read_value()), self.slots)
        if self._copy is None:
            self._copy = self.flat.numpy()
        return Buffer(self._copy, self.slots)


def accumulators(variables: Mapping[str, Any], bucket_bytes: int) -> tuple[Accumulator, ...]:
    """Accumulators for these variables in this order, each of one dtype and of about ``bucket_bytes``."""
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

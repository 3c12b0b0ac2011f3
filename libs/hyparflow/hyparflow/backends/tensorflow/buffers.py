"""Gradients that accumulate in flat variables, whose memory MPI can reduce in place; on a GPU, a copy on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyparflow.backends import Buffer, Slot
from hyparflow.backends.tensorflow.border import host_view, is_host


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

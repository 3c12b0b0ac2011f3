"""Weight regularizers, those of many small weights as one.

A sum over the elements of two weights is the sum over both in a row. A deep model has hundreds of small kernels with
equal regularizers, and to call TensorFlow's operations for each of them, or to trace them, takes longer than the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

#: Keras' regularizers that are sums over elements.
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)

#: Elements of a row at most: a core's cache holds a copy of them.
_ROW = 2**18


def penalties(weights: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The losses, scalars, that together are those of the pairs (regularizer, value)."""
    found = []
    alike: dict[Any, tuple[Any, list[Any]]] = {}
    for regularizer, value in weights:
        if type(regularizer) in _SUMS:
            kind = (type(regularizer), *sorted(regularizer.get_config().items()), value.dtype)
            alike.setdefault(kind, (regularizer, []))[1].append(value)
        else:
            found.append(tf.reduce_sum(regularizer(value)))
    for regularizer, values in alike.values():
        found += [tf.reduce_sum(regularizer(row)) for row in _rows(values)]
    return found


def _rows(values: Iterable[Any]) -> Iterator[Any]:
    """The values one after the other in tensors of ``_ROW`` elements at most; a larger one as it is."""
    flat = tf.constant([-1])
    row: list[Any] = []
    length = 0
    for value in values:
        size = value.shape.num_elements()
        if size > _ROW:
            yield value
            continue
        if length + size > _ROW:
            yield tf.concat(row, 0)
            row, length = [], 0
        row.append(tf.reshape(value, flat))
        length += size
    if row:
        yield tf.concat(row, 0)

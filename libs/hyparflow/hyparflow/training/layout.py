"""Conversion of users' data structures to the flat order of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hyparflow.errors import DataError

if TYPE_CHECKING:
    import keras

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Samples:
    """Arrays with a leading axis of samples: per input, and per output its targets and weights (None if absent)."""

    inputs: tuple[Array, ...]
    targets: tuple[Array | None, ...]
    weights: tuple[Array | None, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that are present."""
        return tuple(each for each in (*self.inputs, *self.targets, *self.weights) if each is not None)

    def rows(self, index: slice | Array) -> Samples:
        """Return some of the samples: views for a slice, copies for an array of indices."""
        return Samples(
            tuple(each[index] for each in self.inputs),
            tuple(None if each is None else each[index] for each in self.targets),
            tuple(None if each is None else each[index] for each in self.weights),
        )

    @property
    def row_bytes(self) -> int:
        """The bytes of one sample in all arrays."""
        return max(1, sum(each.nbytes // max(1, len(each)) for each in self.arrays))

    def digest(self, begun: int = 0) -> int:
        """Return a checksum of all bytes, combined with the checksum ``begun``."""
        found = begun
        for each in self.arrays:
            found = crc32(np.ascontiguousarray(each).view(np.uint8).data, found)
        return found


@dataclass(frozen=True)
class Layout:
    """The inputs and outputs of a model, in its flattened order.

    ``keys`` are the names in a dict of data: those of the model's own dict if its inputs are one, else the names of the
    input layers. Either can be used for an input or an output.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_keys: tuple[str, ...]
    output_keys: tuple[str, ...]
    shapes: tuple[tuple[int | None, ...], ...]  # of the inputs, with the batch axis
    dtypes: tuple[str, ...]  # of the inputs
    losses: tuple[bool, ...]  # outputs with a loss or metric of their own

    @classmethod
    def of(cls, model: keras.Model) -> Layout:
        """Return the layout of a built Functional or Sequential model."""
        functional = getattr(model, "_functional", model)  # of a Sequential
        inputs = tuple(tensor.name for tensor in model.inputs)
        outputs = tuple(functional.output_names)
        count = len(outputs)
        names = _keys(functional._outputs_struct, outputs)
        return cls(
            inputs=inputs,
            outputs=outputs,
            input_keys=_keys(functional._inputs_struct, inputs),
            output_keys=names,
            shapes=tuple(tuple(tensor.shape) for tensor in model.inputs),
            dtypes=tuple(tensor.dtype for tensor in model.inputs),
            losses=_with_loss(getattr(model, "loss", None), names, outputs, count),
        )

    def samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Samples:
        """Return the arrays of x, y and sample_weight; floating-point targets and weights have Keras' floatx.

        Args:
            x: Inputs: an array, a list or tuple of arrays, or a dict.
            y: Targets in the same forms, or None.
            sample_weight: Weights of the samples, one array or per output, or None.

        Raises:
            DataError: Their structure, shapes or lengths do not fit the model.
        """
        inputs = tuple(
            self._input(position, each)
            for position, each in enumerate(_flat(x, self.inputs, self.input_keys, "x", "inputs"))
        )
        if not inputs:
            raise DataError("x contains no array")
        targets = self._targets(y)
        found = Samples(inputs, targets, self._weights(sample_weight, targets))
        lengths = {len(each) for each in found.arrays}
        if len(lengths) > 1:
            raise DataError(f"x, y and sample_weight must have equally many samples, but have {sorted(lengths)}")
        return found

    def _input(self, position: int, value: Any) -> Array:
        array = np.asarray(value, dtype=self.dtypes[position])
        shape = self.shapes[position]
        if array.ndim == len(shape) - 1 and shape[-1] == 1:
            array = array[..., None]
        elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
            array = array[..., 0]
        fits = array.ndim == len(shape) and all(
            wanted is None or wanted == size for wanted, size in zip(shape[1:], array.shape[1:], strict=True)
        )
        if not fits:
            raise DataError(f"input {self.inputs[position]!r} of the model is {shape}, but x has {array.shape} for it")
        return array

    def _targets(self, y: Any) -> tuple[Array | None, ...]:
        if y is None:
            return (None,) * len(self.outputs)
        wanted = sum(self.losses)
        if isinstance(y, list | tuple) and len(y) == wanted < len(self.outputs):  # only for outputs with a loss
            given = iter(y)
            y = [next(given) if has else None for has in self.losses]
        return tuple(_array(each) for each in _flat(y, self.outputs, self.output_keys, "y", "outputs"))

    def _weights(self, weights: Any, targets: Sequence[Array | None]) -> tuple[Array | None, ...]:
        if weights is None:
            return (None,) * len(self.outputs)
        if not isinstance(weights, Mapping | list | tuple):
            array = _array(weights)
            return tuple(None if target is None else array for target in targets)
        return tuple(
            _array(each) for each in _flat(weights, self.outputs, self.output_keys, "sample_weight", "outputs")
        )


def class_weights(samples: Samples, weights: Mapping[int, float]) -> Samples:
    """Return the samples with weights by the class of their only target: an index, or the position of the maximum.

    Raises:
        DataError: There are weights already, or more than one output.
    """
    from keras import backend

    if any(each is not None for each in samples.weights):
        raise DataError("class_weight and sample_weight cannot be given together")
    if len(samples.targets) != 1 or samples.targets[0] is None:
        raise DataError("class_weight is for models with one output")
    target = samples.targets[0]
    if target.ndim > 1:
        target = target.argmax(axis=-1) if target.shape[-1] != 1 else target[..., 0]
    classes = np.round(target).astype(np.int64)
    found = np.ones(classes.shape, dtype=backend.floatx())
    for each, weight in weights.items():
        found[classes == each] = weight
    return Samples(samples.inputs, samples.targets, (found,))


def _flat(value: Any, names: Sequence[str], keys: Sequence[str], what: str, kind: str) -> list[Any]:
    """Return the values in flattened order, from one array, a list or tuple, or a dict."""
    if isinstance(value, Mapping):
        for known in (keys, names):
            if set(known) <= set(value):
                return [value[name] for name in known]
            if kind == "outputs" and set(value) <= set(known):
                return [value.get(name) for name in known]
        raise DataError(f"{what} has the keys {sorted(value)}, but the model's {kind} are {list(keys)}")
    if isinstance(value, list | tuple) and len(value) == len(names):
        return list(value)
    if len(names) == 1 and (not isinstance(value, list | tuple) or np.ndim(value[0] if value else 0) == 0):
        return [value]
    count = len(value) if isinstance(value, list | tuple) else 1
    raise DataError(f"{what} has {count} arrays, but the model has {len(names)} {kind}: {', '.join(names)}")


def _array(value: Any) -> Array | None:
    if value is None:
        return None
    from keras import backend

    array = np.asarray(value)
    return array.astype(backend.floatx(), copy=False) if array.dtype.kind == "f" else array


def _keys(structure: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of a flat dict, sorted as Keras flattens it; else the names."""
    if isinstance(structure, Mapping) and len(structure) == len(names):
        return tuple(sorted(structure))
    return names


def _with_loss(loss: Any, keys: Sequence[str], names: Sequence[str], count: int) -> tuple[bool, ...]:
    if isinstance(loss, Mapping):
        known = keys if set(loss) <= set(keys) else names
        return tuple(loss.get(name) is not None for name in known)
    if isinstance(loss, list | tuple) and len(loss) == count:
        return tuple(each is not None for each in loss)
    return (loss is not None,) * count

"""The losses of a model, computed for parts of a batch, and weight regularizers.

The parts of a batch contribute such that the sum is Keras' loss of the whole batch. A Keras loss is a weighted sum over
elements, divided by a total: their number, the number that a mask leaves, or the sum of their weights. Sum and total
add up over parts, but the total of the whole batch must be known before the first gradient. A number of elements
follows from the number of samples; ``totals`` computes the others.

Regularizers of many small weights are computed as one. The sum over the elements of two weights is the sum over their
concatenation. A deep model has hundreds of small kernels with equal regularizers; calling or tracing TensorFlow's
operations for each takes longer than the sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.losses.loss import apply_mask, squeeze_or_expand_to_same_rank

from hyparflow.backends import Portion
from hyparflow.errors import UnsupportedModel

#: Number of values that are fed before the totals: rows, weight of a mean, parts.
PORTION = 3
#: Placeholder for an unknown total.
UNKNOWN = -1.0
#: Keras' regularizers that are sums over elements.
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
#: Maximum number of elements in a row: a core's cache holds a copy of them.
_ROW = 2**18


@dataclass(frozen=True)
class OutputLoss:
    """One compiled loss: ``output`` is the position in ``Graph.outputs``, ``function`` a Keras loss."""

    output: int
    function: Any
    weight: Any


def compiled_losses(model: Any) -> tuple[OutputLoss, ...]:
    """Return the losses of a compiled model; empty if it is not compiled or has no loss.

    Keras itself resolves them on the symbolic outputs, for targets of the outputs' shapes.

    Raises:
        UnsupportedModel: A loss depends on several outputs.
    """
    from keras import tree
    from keras.src.trainers.compile_utils import CompileLoss

    compiled = getattr(model, "_compile_loss", None)
    if compiled is None:
        return ()
    outputs = model.outputs
    structure = getattr(model, "_functional", model)._outputs_struct
    if isinstance(structure, (list, tuple)) and len(structure) == 1:
        structure = structure[0]
    losses = CompileLoss(compiled._user_loss, compiled._user_loss_weights, output_names=compiled.output_names)
    losses.build(structure, structure)
    places: Any = tree.pack_sequence_as(structure, list(range(len(outputs))))
    if isinstance(losses._y_pred_build_structure, dict) and not isinstance(structure, dict):
        places = dict(zip(compiled.output_names, range(len(outputs)), strict=True))
    found = tuple(OutputLoss(_at(places, path), loss, weight) for path, loss, weight, _ in losses._flat_losses)
    for each in found:
        if not isinstance(each.output, int):
            names = ", ".join(compiled.output_names[place] for place in tree.flatten(each.output))
            raise UnsupportedModel(
                f"loss {each.function.name!r} is of the outputs {names} together, which can be on different ranks: "
                "give each output a loss of its own in compile()"
            )
    return found


def couples_samples(loss: Any) -> bool:
    """Return whether one of Keras' losses depends on the batch as a whole, so that it is not a sum over samples."""
    import keras

    if isinstance(loss, keras.losses.Circle):
        return True
    if isinstance(loss, keras.losses.Dice | keras.losses.Tversky):
        axes = loss.axis
        return axes is None or 0 in (axes if isinstance(axes, list | tuple) else [axes])
    return False


def depends_on_batch(loss: Any) -> bool:
    """Return whether the mean over all samples depends (or may depend, for a user's loss) on the batch size."""
    function = getattr(loss, "fn", type(loss))
    own = not getattr(function, "__module__", "").startswith("keras.")
    return own or couples_samples(loss) or loss.reduction not in ("sum_over_batch_size", "mean")


def _at(structure: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        structure = structure[key]
    return structure


def described(portion: Portion | None, losses: int) -> list[float]:
    """Return the values that describe a portion of a batch to a program with this many losses."""
    if portion is None:
        return [math.inf, 1.0, 1.0, *[UNKNOWN] * losses]
    totals = portion.totals or (UNKNOWN,) * losses
    return [portion.rows, portion.weight, portion.parts, *totals]


@dataclass(frozen=True)
class Terms:
    """A weighted sum of losses and its divisor; ``counted``: the divisor is the number of elements."""

    sum: Any
    total: Any
    counted: bool


def logits_of(value: Any) -> Any:
    """Return the logits of Keras' softmax or sigmoid, which its losses and metrics use; None for other tensors."""
    return getattr(value, "_keras_logits", None)


def attach(value: Any, mask: Any, logits: Any) -> Any:
    """Attach mask and logits to a tensor, where Keras looks for them."""
    if mask is not None:
        set_keras_mask(value, mask)
    if logits is not None:
        value._keras_logits = logits
    return value


def terms(loss: Any, target: Any, predicted: Any, weight: Any) -> Terms | None:
    """Compute a loss as ``keras.losses.Loss.__call__`` does; None if it is not a sum over elements of the batch.

    Args:
        loss: A Keras loss.
        target: The targets.
        predicted: The predictions.
        weight: The sample weights, or None.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__ or loss.reduction in (None, "none"):
        return None
    mask = get_keras_mask(predicted)
    predicted = ops.convert_to_tensor(predicted, dtype=loss.dtype)
    values = loss.call(ops.convert_to_tensor(target, dtype=loss.dtype), predicted)
    own = get_keras_mask(values)
    mask = own if mask is None else mask if own is None else mask & own
    values = ops.convert_to_tensor(values, dtype=loss.dtype)
    if not values.shape.rank:
        return None
    masked = 1.0
    if mask is not None:
        mask = ops.convert_to_tensor(mask, dtype=loss.dtype)
        masked = ops.divide_no_nan(ops.sum(mask), tf.cast(tf.size(mask), values.dtype))
    weight = None if weight is None else ops.convert_to_tensor(weight, dtype=loss.dtype)
    weight = apply_mask(weight, mask, dtype=values.dtype, reduction="sum")
    if weight is not None:
        values, weight = squeeze_or_expand_to_same_rank(values, ops.cast(weight, values.dtype))
        values = values * weight
    counted = weight is None or loss.reduction != "mean_with_sample_weight"
    total = tf.cast(tf.size(values), values.dtype) * masked if counted else ops.sum(weight)
    return Terms(ops.sum(values), total, counted)


def share_of_batch(
    loss: Any, target: Any, predicted: Any, weight: Any, *, portion: Any, index: int, filled: bool
) -> Any:
    """Return the contribution of a micro-batch to a loss; the mean over the parts is Keras' loss of the batch.

    Args:
        loss: A Keras loss.
        target: The targets of the micro-batch.
        predicted: Its predictions.
        weight: Its sample weights, or None.
        portion: The tensor of ``described``.
        index: The position of the loss in it.
        filled: The last rows may be padding.
    """
    if filled:
        rows = tf.maximum(tf.cast(portion[0], "int32"), 1)
        mask, logits = get_keras_mask(predicted), logits_of(predicted)
        predicted = attach(predicted[:rows], *(None if each is None else each[:rows] for each in (mask, logits)))
        target, weight = target[:rows], None if weight is None else weight[:rows]
    found = terms(loss, target, predicted, weight)
    if found is None:
        value = loss(target, predicted, weight)
        if value.shape.rank:
            raise UnsupportedModel(
                f"loss {loss.name!r} has no reduction, so it returns a value for each sample: set "
                "reduction='sum_over_batch_size', or 'sum', which trains like a loss without reduction"
            )
        return value * tf.cast(portion[1], value.dtype)
    _, share, parts = (tf.cast(each, found.sum.dtype) for each in tf.unstack(portion[:PORTION]))
    real = tf.cast(share > 0, found.sum.dtype)
    if loss.reduction == "sum":
        return found.sum * parts * real
    total = tf.cast(portion[PORTION + index], found.sum.dtype)
    factor = tf.where(total < 0, tf.math.divide_no_nan(share, found.total), tf.math.divide_no_nan(parts, total))
    return found.sum * factor * real


def penalties(weights: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return scalar losses whose sum is that of the pairs (regularizer, value)."""
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
    """Concatenate the values to tensors of at most ``_ROW`` elements; larger values stay as they are."""
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

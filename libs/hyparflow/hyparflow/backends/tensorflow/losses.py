"""What ``model.compile`` says about losses, output by output.

Losses of a batch that is computed in parts: what each part adds, so that the sum is Keras' loss of the whole batch.

A Keras loss is a weighted sum over elements, divided by a total: their number, that of those that a mask leaves, or the
sum of their weights. Both add up over parts. The total of the whole batch has to be known before the first gradient.
Where it is a number of elements it follows from the number of samples; ``totals`` has the others.

Weight regularizers, those of many small weights as one.

A sum over the elements of two weights is the sum over both in a row. A deep model has hundreds of small kernels with
equal regularizers, and to call TensorFlow's operations for each of them, or to trace them, takes longer than the sums.
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

#: Numbers that are fed before the totals: rows, weight of a mean, parts.
PORTION = 3
#: In the place of a total that is not known.
UNKNOWN = -1.0
#: Keras' regularizers that are sums over elements.
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
#: Elements of a row at most: a core's cache holds a copy of them.
_ROW = 2**18


@dataclass(frozen=True)
class OutputLoss:
    """One compiled loss: ``output`` is the position in ``Graph.outputs``, ``function`` a Keras loss."""

    output: int
    function: Any
    weight: Any


def compiled_losses(model: Any) -> tuple[OutputLoss, ...]:
    """The losses of a compiled model; none for a model that is not compiled or has no loss.

    Keras resolves them itself, on the symbolic outputs (for targets of the outputs' shapes).

    :raises UnsupportedModel: if one of them is of several outputs together.
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
                f"loss {each.function.name!r} is of the outputs {names} together, which may lie on different ranks: "
                "give each output a loss of its own in compile()"
            )
    return found


def couples_samples(loss: Any) -> bool:
    """Whether one of Keras' losses is of a batch as a whole: no sum over its samples."""
    import keras

    if isinstance(loss, keras.losses.Circle):
        return True
    if isinstance(loss, keras.losses.Dice | keras.losses.Tversky):
        axes = loss.axis
        return axes is None or 0 in (axes if isinstance(axes, list | tuple) else [axes])
    return False


def depends_on_batch(loss: Any) -> bool:
    """Whether another size of batches gives another mean over all samples, or may, as a user's own loss."""
    function = getattr(loss, "fn", type(loss))
    own = not getattr(function, "__module__", "").startswith("keras.")
    return own or couples_samples(loss) or loss.reduction not in ("sum_over_batch_size", "mean")


def _at(structure: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        structure = structure[key]
    return structure


def described(portion: Portion | None, losses: int) -> list[float]:
    """What a program is fed with about a portion of a batch, for so many losses."""
    if portion is None:
        return [math.inf, 1.0, 1.0, *[UNKNOWN] * losses]
    totals = portion.totals or (UNKNOWN,) * losses
    return [portion.rows, portion.weight, portion.parts, *totals]


@dataclass(frozen=True)
class Terms:
    """A weighted sum of losses, and what it is divided by; ``counted``: by the number of elements."""

    sum: Any
    total: Any
    counted: bool


def logits_of(value: Any) -> Any:
    """What Keras' softmax or sigmoid was computed from, which its losses and metrics take; None for other tensors."""
    return getattr(value, "_keras_logits", None)


def attach(value: Any, mask: Any, logits: Any) -> Any:
    """The tensor with the mask and logits that Keras finds on it."""
    if mask is not None:
        set_keras_mask(value, mask)
    if logits is not None:
        value._keras_logits = logits
    return value


def terms(loss: Any, target: Any, predicted: Any, weight: Any) -> Terms | None:
    """A loss as ``keras.losses.Loss.__call__`` computes it; None where it is no sum over elements of the batch."""
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
    """What a micro-batch adds to a loss; Keras' loss of the batch is the mean over its parts.

    ``portion``: what ``described`` gives, of which the loss is number ``index``.
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
                f"loss {loss.name!r} has no reduction, and gives a value for each sample: say "
                "reduction='sum_over_batch_size', or 'sum' for what such a loss trains"
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

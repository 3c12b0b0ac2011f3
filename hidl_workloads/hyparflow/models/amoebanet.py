"""A network in the manner of AmoebaNet, for small images: cells of many branches, fed by the two cells before.

Real et al., Regularized Evolution for Image Classifier Architecture Search (2018), describes the shape: a cell makes
five sums of two operations, each on one of the two last cells or on an earlier sum, and joins the sums that no node in
the cell used; three stacks of normal cells with a reduction cell between them. The operations below are ours, of the
kinds found there: this measures training of such graphs, and claims no published accuracy.
"""

from __future__ import annotations

from typing import Any

from hidl_workloads.hyparflow.models import CLASSES, SIZE

_STACKS = 3

#: Five sums of two operations and their operands: 0 is the last cell, 1 the cell before it, and 2 to 6 are the sums.
_NORMAL = (
    (("identity", 0), ("max", 0)),
    (("separable", 1), ("identity", 0)),
    (("average", 1), ("point", 0)),
    (("identity", 2), ("crossed", 1)),
    (("average", 0), ("point", 3)),
)
#: The same for a cell in which the operations on 0 and 1 halve height and width.
_REDUCTION = (
    (("max", 0), ("separable", 1)),
    (("average", 0), ("max", 1)),
    (("point", 2), ("crossed", 1)),
    (("identity", 3), ("average", 0)),
    (("separable", 2), ("max", 1)),
)
_FIRST_SUM = 2


def cells_of_a_stack(cells: int) -> int:
    """The normal cells of each of the three stacks; raises ``ValueError`` where they are not as many in each."""
    if cells < _STACKS or cells % _STACKS:
        raise ValueError(f"the number of cells must be a multiple of {_STACKS}, not {cells}")
    return cells // _STACKS


def amoebanet(cells: int, filters: int, image_size: int = SIZE) -> Any:
    """The Keras model, ``amoebanet{cells}x{filters}``.

    ``cells``: normal cells, a multiple of 3; ``filters``: those of each sum in the first stack, and twice as many in
    each next one. Raises ``ValueError`` for another number of cells.
    """
    import keras
    from keras import layers

    in_each = cells_of_a_stack(cells)
    images = keras.Input((image_size, image_size, 3), name="images")
    before = last = _convolved(images, filters, 3)
    for stack in range(_STACKS):
        for _ in range(in_each):
            before, last = last, _cell(_NORMAL, last, before, filters * 2**stack)
        if stack < _STACKS - 1:
            before, last = last, _cell(_REDUCTION, last, before, filters * 2 ** (stack + 1), strides=2)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(last))
    logits = layers.Dense(CLASSES, name="logits")(x)
    return keras.Model(images, logits, name=f"amoebanet{cells}x{filters}")


def _cell(table: tuple[Any, ...], last: Any, before: Any, filters: int, strides: int = 1) -> Any:
    from keras import layers

    # After a reduction, the cell before the last one is twice as high and wide.
    ratio = -(-before.shape[1] // last.shape[1])
    values = [_convolved(last, filters, 1), _convolved(before, filters, 1, strides=ratio)]
    for pair in table:
        terms = [_OPERATIONS[name](values[at], filters, strides if at < _FIRST_SUM else 1) for name, at in pair]
        values.append(layers.Add()(terms))
    used = {at for pair in table for _, at in pair}
    return layers.Concatenate()([value for at, value in enumerate(values) if at >= _FIRST_SUM and at not in used])


def _convolved(x: Any, filters: int, size: int | tuple[int, int], strides: int = 1) -> Any:
    from keras import layers

    x = layers.ReLU()(x)
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def _identity(x: Any, filters: int, strides: int) -> Any:
    return x if strides == 1 else _convolved(x, filters, 1, strides)


def _point(x: Any, filters: int, strides: int) -> Any:
    return _convolved(x, filters, 1, strides)


def _crossed(x: Any, filters: int, strides: int) -> Any:
    return _convolved(_convolved(x, filters, (1, 7), strides), filters, (7, 1))


def _separable(x: Any, filters: int, strides: int) -> Any:
    from keras import layers

    x = layers.ReLU()(x)
    x = layers.SeparableConv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def _max(x: Any, filters: int, strides: int) -> Any:
    from keras import layers

    return layers.MaxPooling2D(3, strides=strides, padding="same")(x)


def _average(x: Any, filters: int, strides: int) -> Any:
    from keras import layers

    return layers.AveragePooling2D(3, strides=strides, padding="same")(x)


_OPERATIONS = {
    "average": _average,
    "crossed": _crossed,
    "identity": _identity,
    "max": _max,
    "point": _point,
    "separable": _separable,
}

"""Nodes on one part of the images: convolutions and poolings with halos, normalisation over whole images.

Ranks exchange rows inside TensorFlow's programs. The gradient of a row that was sent returns and is added to that of
the sender, so the sum of a weight's gradients over the parts is the gradient of the whole images.

A convolution keeps its own rows and the received ones for its backward pass, not the tensor that they are joined to.
Such a tensor is computed again when the gradient arrives; without the control dependency on it, TensorFlow would
compute it at once and keep it.

Messages block the rank, so all parts must exchange them in one order, or they wait for each other for ever. Forward, it
is that of the nodes. ``tf.gradients`` differentiates parallel branches in an order that depends on the number of their
operations, and parts differ in it (only the first one pads at the top). The order of the returning messages is
therefore set afterwards, as the reverse of the forward one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from hyparflow.backends import SpatialPart
from hyparflow.backends.tensorflow.scope import Scope
from hyparflow.graph.calls import Call
from hyparflow.graph.spatial import WINDOWED, Halo, rows_of, windows_of
from hyparflow.graph.types import Node


class Messages:
    """The messages of one direction (forward or backward) of a stage's graph.

    ``chain`` makes each operation wait for the previous one, so they run in the same order on all parts.
    """

    def __init__(self, comm: Any, wait: Callable[[Any], None]) -> None:
        """Prepare a chain of messages.

        Args:
            comm: A communicator of the parts for this chain.
            wait: A function that waits for a request of MPI.
        """
        self._comm = comm
        self._wait = wait
        self._chain: dict[int, Any] = {}

    @property
    def operations(self) -> list[Any]:
        """The operations of the chain, by ascending turn."""
        return [self._chain[turn] for turn in sorted(self._chain)]

    def exchange(
        self, turn: int, sent: Sequence[tuple[int, Any]], received: Sequence[tuple[int, tuple[int, ...]]], dtype: Any
    ) -> tuple[Any, list[Any]]:
        """Send tensors to parts; return the operation and the tensors that are received.

        The message would not be sent if nothing depended on the operation.

        Args:
            turn: The position of the message in the chain.
            sent: The part and the tensor of each message.
            received: The part and the shape of each message.
            dtype: The dtype of all tensors.
        """
        comm = self._comm
        receivers, sources = [part for part, _ in sent], [part for part, _ in received]

        def run(*arrays: Any) -> list[Any]:
            made = [np.empty(shape, dtype.as_numpy_dtype) for _, shape in received]
            requests = [comm.Irecv(_bytes(array), source) for array, source in zip(made, sources, strict=True)]
            owned = [np.ascontiguousarray(array) for array in arrays]
            requests += [comm.Isend(_bytes(array), other) for array, other in zip(owned, receivers, strict=True)]
            for request in requests:
                self._wait(request)
            return made or [np.zeros((), dtype.as_numpy_dtype)]

        made = self._run(turn, run, [tensor for _, tensor in sent], [dtype] * max(len(received), 1))
        for tensor, (_, shape) in zip(made, received, strict=False):
            tensor.set_shape(shape)
        return made[0].op, made[: len(received)]

    def gather(self, turn: int, tensor: Any) -> Any:
        """Return the small tensors of all parts, stacked."""
        comm = self._comm
        dtype, shape = tensor.dtype, (comm.Get_size(), *tensor.shape)

        def run(array: Any) -> list[Any]:
            made = np.empty(shape, dtype.as_numpy_dtype)
            self._wait(comm.Iallgather(_bytes(np.ascontiguousarray(array)), _bytes(made)))
            return [made]

        (made,) = self._run(turn, run, [tensor], [dtype])
        made.set_shape(shape)
        return made

    def total(self, turn: int, tensor: Any) -> Any:
        """Return the sum over all parts, the same bits on each."""
        return tf.add_n(tf.unstack(self.gather(turn, tensor)))

    def _run(self, turn: int, function: Callable[..., list[Any]], tensors: list[Any], dtypes: list[Any]) -> list[Any]:
        made = list(tf.numpy_function(function, tensors, dtypes))
        # Only the first differentiation computes gradients; later ones show what depends on what, and never run.
        self._chain.setdefault(turn, made[0].op)
        return made


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


class SpatialNodes:
    """The nodes of one stage's graph on one part."""

    def __init__(
        self, scope: Scope, part: SpatialPart, shapes: Sequence[tuple[int, ...]], *, one_program: bool
    ) -> None:
        """Prepare to build a graph.

        Args:
            scope: The scope in which nodes run.
            part: The part of this rank.
            shapes: The shape of each tensor of the model's graph as a whole.
            one_program: Forward and backward run in one program.
        """
        self._scope = scope
        self._part = part
        self._shapes = shapes
        self._ahead = Messages(part.forward, part.wait)
        self._back = Messages(part.backward, part.wait)
        self._turns = count()
        self._one_program = one_program

    def run(self, node: Node, call: Call, values: dict[int, Any], *, training: bool) -> None:
        """Run a node like ``Scope.run``, with the tensors of this part."""
        division = self._part.division
        source = node.inputs[0] if node.inputs else -1
        if node.index in division.sums:
            shape = (values[source].shape[0], *self._shapes[node.outputs[0]])
            values[node.outputs[0]] = tf.reshape(self._average(values[source], self._shapes[source]), shape)
        elif node.index in division.nodes and node.kind in WINDOWED:
            values[node.outputs[0]] = self._windowed(call.operation, values[source], source, node.outputs[0])
        elif node.index in division.nodes and _normalises(call.operation, training):
            values[node.outputs[0]] = self._normalised(call.operation, values[source], self._shapes[source])
        elif node.index in division.nodes:
            self._scope.run(call, values, node.outputs, training)
        else:
            seen = {index: self._whole(index, values[index]) for index in node.inputs}
            self._scope.run(call, seen, node.outputs, training)
            values.update({index: seen[index] for index in node.outputs})

    @property
    def received(self) -> list[Any]:
        """The operations of the forward messages."""
        return self._ahead.operations

    def order_messages(self) -> None:
        """Put all messages of the finished graph in order; gradients return in the reverse order of the tensors."""
        ahead, back = self._ahead.operations, self._back.operations[::-1]
        for chain in [[*ahead, *back]] if self._one_program else [ahead, back]:
            for earlier, later in pairwise(chain):
                later._add_control_input(earlier)

    def _whole(self, index: int, value: Any) -> Any:
        """Return a whole tensor."""
        if index not in self._part.division.tensors:
            return value
        halo = Halo.of_whole(self._shapes[index][0], self._part.division.parts)
        return self._with_halo(halo, tf.identity, value, [])

    def _average(self, value: Any, shape: tuple[int, ...]) -> Any:
        """Return the mean of each channel over the whole images."""

        turn = next(self._turns)

        def total(local: Any) -> Any:
            return self._ahead.total(turn, local), lambda upstream: self._back.total(turn, upstream)

        wide = tf.cast(value, _wide(value.dtype))
        mean = tf.custom_gradient(total)(tf.reduce_sum(wide, [1, 2])) / (shape[0] * shape[1])
        return tf.cast(mean, value.dtype)

    def _windowed(self, layer: Any, value: Any, source: int, made: int) -> Any:
        """Compute a convolution or pooling."""
        shape, outputs = self._shapes[source], self._shapes[made]
        rows, columns = windows_of(layer, shape)
        parts, part = self._part.division.parts, self._part.index
        halo = Halo.of_window(shape[0], outputs[0], rows, parts)
        after = max(0, columns.positions(range(outputs[1])).stop - shape[1])
        pads = [(0, 0), halo.padding(part), (columns.before, after), (0, 0)]
        value = tf.cast(value, layer.compute_dtype)
        if type(layer).__name__ == "Conv2D" and layer.groups == 1 and rows.dilation == columns.dilation == 1:
            kernel = tf.cast(layer.kernel.value, layer.compute_dtype)
            strides = [rows.stride, columns.stride]
            result = self._with_halo(
                halo, lambda ext, kernel: tf.nn.conv2d(ext, kernel, strides, pads), value, [kernel]
            )
            if layer.use_bias:
                result = tf.nn.bias_add(result, tf.cast(layer.bias.value, layer.compute_dtype))
        else:
            result = self._padded(layer, halo, pads, value)
        if type(layer).__name__ == "AveragePooling2D":
            counts = np.outer(
                _counts(rows, rows_of(outputs[0], parts, part), shape[0]),
                _counts(columns, range(outputs[1]), shape[1]),
            )
            result *= tf.constant(rows.size * columns.size / counts[None, :, :, None], result.dtype)
        activation = getattr(layer, "activation", None)
        return result if activation is None else activation(result)

    def _padded(self, layer: Any, halo: Halo, pads: Sequence[tuple[int, int]], value: Any) -> Any:
        """Compute a layer without its activation on rows with explicit padding."""
        variables = list(layer.variables)
        weights = [tf.convert_to_tensor(self._scope.get_current_value(variable)) for variable in variables]
        outside = value.dtype.min if type(layer).__name__ == "MaxPooling2D" else 0

        def compute(ext: Any, *weights: Any) -> Any:
            if any(map(any, pads)):
                ext = tf.pad(ext, pads, constant_values=outside)
            before = [self._scope.get_current_value(variable) for variable in variables]
            _put(self._scope, variables, weights)
            try:
                with _valid(layer):
                    return layer(ext)
            finally:
                _put(self._scope, variables, before)

        return self._with_halo(halo, compute, value, weights)

    def _with_halo(self, halo: Halo, compute: Callable[..., Any], value: Any, weights: Sequence[Any]) -> Any:
        """Return ``compute(rows that the part needs, *weights)``.

        Args:
            halo: The rows; ``compute`` adds their padding.
            compute: The function to compute.
            value: The rows of the part.
            weights: Further arguments that have gradients.
        """
        if halo.is_local:
            return compute(value, *weights)
        part = self._part.index
        own = rows_of(halo.height, len(halo.needs), part)
        sources, receivers = halo.sources(part), halo.receivers(part)
        batch, _, *rest = value.shape
        arriving = [(owner, (batch, len(rows), *rest)) for owner, rows in sources if owner != part]
        leaving = [(other, (batch, len(rows), *rest)) for other, rows in receivers]
        turn = next(self._turns)

        def joined(mine: Any, received: Sequence[Any]) -> Any:
            remaining = iter(received)
            pieces = [_slice(mine, rows, own.start) if owner == part else next(remaining) for owner, rows in sources]
            return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 1)

        def computed(mine: Any, *weights: Any) -> Any:
            sent = [(other, _slice(mine, rows, own.start)) for other, rows in receivers]
            message, received = self._ahead.exchange(turn, sent, arriving, mine.dtype)

            def gradient(upstream: Any) -> Any:
                with tf.control_dependencies([upstream]):
                    ext = joined(tf.identity(mine), [tf.identity(each) for each in received])
                    with self._scope:  # the nodes have been traced, and their scope was left
                        again = compute(ext, *weights)
                    of_weights = tf.gradients(again, list(weights), upstream) if weights else []
                # TensorFlow keeps the joined tensors until it has the gradients of weights, so these come first.
                with tf.control_dependencies([upstream, *of_weights]):
                    (of_ext,) = tf.gradients(again, [ext], upstream)
                pieces, offset = [], 0
                for owner, rows in sources:
                    pieces.append((owner, rows, _slice(of_ext, range(offset, offset + len(rows)), 0)))
                    offset += len(rows)
                returning, returned = self._back.exchange(
                    turn, [(owner, piece) for owner, _, piece in pieces if owner != part], leaving, mine.dtype
                )
                covers = [(rows, piece) for owner, rows, piece in pieces if owner == part]
                covers += [(rows, piece) for (_, rows), piece in zip(receivers, returned, strict=True)]
                of_mine = _after(returning, _added(covers, own, (batch, *rest), mine.dtype))
                return (of_mine, *of_weights)

            return compute(_after(message, joined(mine, received)), *weights), gradient

        return tf.custom_gradient(computed)(value, *weights)

    def _normalised(self, layer: Any, value: Any, shape: tuple[int, ...]) -> Any:
        """Compute a BatchNormalization in training, with mean and variance of the whole images."""
        part, parts = self._part.index, self._part.division.parts
        dtype = _wide(value.dtype)
        of_row = value.shape[0] * shape[1]
        sizes = np.array([of_row * len(rows_of(shape[0], parts, each)) for each in range(parts)])
        total = int(sizes.sum())
        weight = (sizes / total).astype(dtype.as_numpy_dtype)[:, None]
        assert sizes[part] == of_row * value.shape[1], (sizes, value.shape)
        turn = next(self._turns)

        def normalised(local: Any, gamma: Any, beta: Any) -> Any:
            mean = tf.reduce_mean(local, [0, 1, 2])
            square = tf.reduce_mean(tf.math.squared_difference(local, mean), [0, 1, 2])
            means, squares = tf.unstack(self._ahead.gather(turn, tf.stack([mean, square])), axis=1)
            # The variance of the whole is that within the parts plus that of their means.
            whole = tf.reduce_sum(weight * means, 0)
            variance = tf.reduce_sum(weight * (squares + tf.math.squared_difference(means, whole)), 0)
            scale = tf.math.rsqrt(variance + tf.constant(layer.epsilon, dtype))
            made = local * (gamma * scale) + (beta - whole * gamma * scale)

            def gradient(upstream: Any, *_: Any) -> Any:
                with tf.control_dependencies([upstream]):
                    centred = tf.identity(local) - whole
                of_beta = tf.reduce_sum(upstream, [0, 1, 2])
                of_gamma = tf.reduce_sum(upstream * centred, [0, 1, 2]) * scale
                sum_beta, sum_gamma = tf.unstack(self._back.total(turn, tf.stack([of_beta, of_gamma])))
                factor = gamma * scale
                of_local = (upstream - sum_beta / total) * factor - centred * (factor * scale * sum_gamma / total)
                return of_local, of_gamma, of_beta

            return (made, whole, variance), gradient

        channels = [shape[2]]
        gamma = tf.cast(layer.gamma.value, dtype) if layer.scale else tf.ones(channels, dtype)
        beta = tf.cast(layer.beta.value, dtype) if layer.center else tf.zeros(channels, dtype)
        made, mean, variance = tf.custom_gradient(normalised)(tf.cast(value, dtype), gamma, beta)
        for variable, moment in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
            share = tf.cast(tf.stop_gradient(moment), variable.dtype) * (1.0 - layer.momentum)
            variable.assign(variable.value * layer.momentum + share)
        return tf.cast(made, layer.compute_dtype)


def _normalises(operation: Any, training: bool) -> bool:
    """Return whether an operation normalises by the statistics of its input."""
    return type(operation).__name__ == "BatchNormalization" and training and operation.trainable


def _wide(dtype: Any) -> Any:
    return tf.float64 if dtype == tf.float64 else tf.float32


def _after(operation: Any, tensor: Any) -> Any:
    """Return a tensor that waits for an operation."""
    with tf.control_dependencies([operation]):
        return tf.identity(tensor)


def _slice(value: Any, rows: range, start: int) -> Any:
    """Return rows of a part whose first row is ``start``."""
    if len(rows) == value.shape[1]:
        return value
    return value[:, rows.start - start : rows.stop - start]


def _put(scope: Scope, variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        scope.put(variable, value)


def _counts(window: Any, outputs: range, extent: int) -> Any:
    """Return how many positions of the input are in the window of each output; the others are padding."""
    first = np.array(outputs) * window.stride - window.before
    return np.minimum(first + window.size, extent) - np.maximum(first, 0)


@contextmanager
def _valid(layer: Any) -> Iterator[None]:
    """Make a layer neither pad nor apply its activation."""
    changed = {"padding": "valid"} | ({"activation": None} if hasattr(layer, "activation") else {})
    before = {name: getattr(layer, name) for name in changed}
    for name, value in changed.items():
        setattr(layer, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(layer, name, value)


def _added(covers: Sequence[tuple[range, Any]], own: range, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the sum of tensors that cover some of a part's rows each.

    Only rows that several of them cover are added; the others are copied once.

    Args:
        covers: Rows, and the tensor that covers them.
        own: The rows of the part.
        shape: (batch, columns, channels).
        dtype: The dtype of the tensors.
    """
    cuts = sorted({own.start, own.stop, *(end for rows, _ in covers for end in (rows.start, rows.stop))})
    pieces = []
    for begin, end in pairwise(cuts):
        here = [
            _slice(piece, range(begin, end), rows.start)
            for rows, piece in covers
            if rows.start <= begin and end <= rows.stop
        ]
        empty = (shape[0], end - begin, *shape[1:])
        pieces.append(tf.add_n(here) if here else tf.zeros(empty, dtype))
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 1)

"""The divisors of the losses of a whole batch, if they depend on masks or sample weights.

Every rank has the inputs of a batch. A mask that depends on inputs only (of an Embedding or Masking layer) is therefore
computed from them in advance, on whichever ranks the layers are. A mask that depends on weights is not; the losses are
then means over micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend import get_keras_mask

from hyparflow.backends import Array
from hyparflow.backends.tensorflow.losses import UNKNOWN, attach, compiled_losses, depends_on_batch, terms
from hyparflow.backends.tensorflow.scope import Scope
from hyparflow.graph.calls import Calls, calls_of


class Totals:
    """The totals of a model's losses."""

    def __init__(self, model: Any, outputs: Sequence[int]) -> None:
        """Prepare the totals of the losses of some outputs.

        Sets ``batchwise`` if the loss over all samples depends on how they are divided into batches.

        Args:
            model: A compiled Keras model.
            outputs: Positions of the outputs that are computed on this rank.
        """
        self._losses = compiled_losses(model)
        self._calls = calls_of(model)
        graph = self._calls.graph
        masks = {output: _mask_of(self._calls, graph.outputs[output]) for output in range(len(graph.outputs))}
        self._dependent = [
            index
            for index, loss in enumerate(self._losses)
            if masks[loss.output] is not None
            or getattr(loss.function, "reduction", None) == "mean_with_sample_weight"
            or getattr(loss.function, "_fn_kwargs", {}).get("ignore_class") is not None
        ]
        coupled = any(depends_on_batch(loss.function) for loss in self._losses)
        # With several losses, Keras also reports each of them, as a mean over batches.
        self.batchwise = bool(self._dependent) or len(self._losses) > 1 or coupled
        self._mine = [index for index in self._dependent if self._losses[index].output in outputs]
        self._masks: dict[int, Any] = {}
        for index in self._mine:
            output = self._losses[index].output
            if masks[output] is not None and output not in self._masks:
                self._masks[output] = _mask_from_inputs(self._calls, graph.outputs[output])
        self._mine = [i for i in self._mine if self._masks.get(self._losses[i].output, True) is not None]
        self._programs: dict[int, Any] = {}

    @property
    def inputs(self) -> bool:
        """True if the inputs of a whole batch are needed in addition to its targets and weights."""
        return bool(self._masks)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The outputs whose targets and weights of a whole batch are needed."""
        return tuple(dict.fromkeys(self._losses[index].output for index in self._mine))

    def of(
        self, inputs: Sequence[Array], targets: Mapping[int, Array | None], weights: Mapping[int, Array | None]
    ) -> tuple[float, ...]:
        """Return the totals of a whole batch by loss (see ``Portion.totals``).

        Args:
            inputs: All inputs of the model.
            targets: Output -> targets, or None.
            weights: Output -> sample weights, or None.
        """
        found = [UNKNOWN] * len(self._losses)
        for index in self._mine:
            output = self._losses[index].output
            if targets[output] is None:
                continue
            mask = self._masks[output](inputs) if output in self._masks else None
            found[index] = float(self._program(index)(targets[output], weights[output], mask))
        return tuple(found) if self._mine else ()

    def _program(self, index: int) -> Any:
        if index not in self._programs:
            loss = self._losses[index]
            tensor = self._calls.graph.tensors[self._calls.graph.outputs[loss.output]]

            def total(target: Any, weight: Any, mask: Any) -> Any:
                predicted = attach(tf.zeros((tf.shape(target)[0], *tensor.shape), tensor.dtype), mask, None)
                predicted = attach(tf.ensure_shape(predicted, (None, *tensor.shape)), mask, None)
                found = terms(loss.function, target, predicted, weight)
                return tf.constant(UNKNOWN) if found is None else found.total

            self._programs[index] = tf.function(total, reduce_retracing=True, autograph=False)
        return self._programs[index]


def _mask_of(calls: Calls, tensor: int) -> int | None:
    """Return the tensor of the graph that is the mask of a tensor."""
    producer = calls.graph.tensors[tensor].producer
    if producer is None:
        return None
    masks = calls.calls[producer].output_masks
    return masks[calls.graph.nodes[producer].outputs.index(tensor)]


def _mask_from_inputs(calls: Calls, tensor: int) -> Any:
    """Return a function from the model's inputs to a tensor's mask; None if the mask depends on more than inputs."""
    graph = calls.graph
    fed: list[Any] = []
    masks: list[Any] = []

    def trace() -> None:
        values: dict[int, Any] = {}
        for index in graph.inputs:
            known = graph.tensors[index]
            values[index] = tf.compat.v1.placeholder(known.dtype, (None, *known.shape))
            fed.append(values[index])
        needed = _ancestors(calls, tensor)
        variables = {id(v): v for node in needed for v in getattr(calls.calls[node].operation, "variables", ())}
        given = [(v, tf.compat.v1.placeholder(v.dtype, v.shape)) for v in variables.values()]
        with Scope(given) as scope:
            for node in needed:
                scope.run(calls.calls[node], values, graph.nodes[node].outputs, training=False)
        masks.append(get_keras_mask(values[tensor]))

    whole = tf.compat.v1.wrap_function(trace, [])
    (mask,) = masks
    known = {value.op for value in fed}
    waiting, seen = [mask.op], {mask.op}
    while waiting:
        operation = waiting.pop()
        if operation.type == "Placeholder" and operation not in known:
            return None
        before = {value.op for value in operation.inputs} - seen
        seen |= before
        waiting += before
    read = [index for index, value in enumerate(fed) if value.op in seen]
    program = whole.prune([fed[index] for index in read], mask)
    return lambda inputs: program(*(tf.constant(inputs[index], fed[index].dtype) for index in read))


def _ancestors(calls: Calls, tensor: int) -> list[int]:
    """Return the nodes that a tensor depends on, in order."""
    graph = calls.graph
    waiting, seen = [graph.tensors[tensor].producer], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [graph.tensors[each].producer for each in graph.nodes[node].inputs]
    return sorted(seen)

"""Losses and metrics over all ranks, updated on the ranks with the outputs, and summed over micro-batches and replicas.

Most of Keras' own metrics are sums (totals, counts, confusion matrices), so the state over all samples is the sum of
the states over shares of them, and the results equal those of Keras on the whole. Other metrics compare the samples of
a batch (correlations), and a metric whose ``update_state``, ``reset_state`` or function is not Keras' own can do
anything. For those, rank 0 collects targets and predictions of all replicas and updates them itself, with each batch as
a whole, in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.engine.engine import Batch, StepResult
from hyparflow.errors import DataError, UnsupportedModel
from hyparflow.training.agreement import sum_equal
from hyparflow.training.layout import Array, Samples

if TYPE_CHECKING:
    import keras

#: The data of one micro-batch: its position, the output, and the arguments for its metrics.
_Pending = tuple[tuple[int, int, int], int, Array, Array, Array | None, Array | None, Array | None]


@dataclass(frozen=True)
class _OfOutput:
    """The metrics of one output, without and with sample weights."""

    plain: tuple[Any, ...]
    weighted: tuple[Any, ...]

    @property
    def all(self) -> tuple[Any, ...]:
        return (*self.plain, *self.weighted)

    def update(self, target: Any, prediction: Any, weight: Any, mask: Any, logits: Any) -> None:
        """Update all metrics.

        Args:
            target: The targets.
            prediction: The predictions.
            weight: The sample weights, or None.
            mask: The mask of the predictions that Keras uses, or None.
            logits: The logits of the predictions that Keras uses, or None.
        """
        import tensorflow as tf

        from hyparflow.backends.tensorflow.losses import attach

        prediction = attach(tf.convert_to_tensor(prediction), mask, logits)
        for metric in self.plain:
            metric.update_state(target, prediction)
        for metric in self.weighted:
            metric.update_state(target, prediction, weight)

    def kept(self, names: Container[int]) -> _OfOutput:
        """Return the metrics whose ``id`` is in ``names``."""

        def chosen(metrics: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(each for each in metrics if id(each) in names)

        return _OfOutput(chosen(self.plain), chosen(self.weighted))


class Meter:
    """The losses and metrics of ``fit`` and ``evaluate``. All ranks call the same methods in the same order.

    After ``agree``, the model's own metric objects have the states over all ranks, on every rank.
    """

    def __init__(
        self,
        model: keras.Model,
        example: Samples,
        comm: Any,
        *,
        replica: int,
        counts: bool,
        replicas: int,
        micro_batches: int,
    ) -> None:
        """Build the metrics.

        Args:
            model: A compiled model.
            example: A batch, for the shapes of targets.
            comm: mpi4py's communicator of all ranks of the training.
            replica: This rank's replica.
            counts: This rank counts its replica's samples; exactly one rank per replica does.
            replicas: Copies of the model.
            micro_batches: Micro-batches of a replica's step.

        Raises:
            UnsupportedModel: Layers have metrics of their own, which cannot be summed over ranks.
            DataError: An output has a loss, but no targets.
        """
        from hyparflow.backends.tensorflow.losses import compiled_losses

        names = getattr(model, "_functional", model).output_names
        self._model, self._comm = model, comm
        self._replica, self._counts, self._replicas, self._micro_batches = replica, counts, replicas, micro_batches
        self._losses = compiled_losses(model)
        self._names = names
        for loss in self._losses:
            if example.targets[loss.output] is None:
                raise DataError(f"output {names[loss.output]!r} has a loss, but the data have no targets")
        metrics = _built(model, example)
        additive = {
            id(metric)
            for output, each in metrics.items()
            for metric in each.all
            if is_additive(metric, example.targets[output], model.outputs[output])
        }
        others = {id(metric) for each in metrics.values() for metric in each.all} - additive
        self._summed = {output: found for output, each in metrics.items() if (found := each.kept(additive)).all}
        self._gathered = {output: found for output, each in metrics.items() if (found := each.kept(others)).all}
        self._summed_state = [v for each in self._summed.values() for metric in each.all for v in metric.variables]
        self._gathered_state = [v for each in self._gathered.values() for metric in each.all for v in metric.variables]
        self._trackers = [] if model._compile_loss is None else list(model._compile_loss.metrics)
        self._programs: dict[int, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Reset the states, for an epoch or an evaluation."""
        self._model.reset_metrics()
        self._shows_totals = False
        self._steps = 0
        self._pending: list[_Pending] = []
        # Samples, sum of losses, sum of each output's loss and, for those, number of batches: of this rank since the
        # last agreement, then over all ranks.
        self._own = np.zeros(2 + len(self._losses) + bool(self._trackers))
        self._sums = np.zeros(len(self._own) + sum(int(np.prod(v.shape)) for v in self._summed_state))
        self._held = [np.asarray(each).copy() for each in self._gathered_state]

    @property
    def totals(self) -> tuple[float, ...]:
        """The agreed states over all ranks, for a checkpoint."""
        return tuple(float(value) for each in (self._sums, *self._held) for value in each.reshape(-1))

    @totals.setter
    def totals(self, values: Sequence[float]) -> None:
        self._sums[:] = values[: len(self._sums)]
        self._held = _unpacked(np.array(values[len(self._sums) :]), self._gathered_state)
        for variable, value in zip(self._gathered_state, self._held, strict=True):
            variable.assign(value)

    def observe(self, result: StepResult, batch: Batch) -> None:
        """Record the results of this rank in one step."""
        counts = batch.counts
        assert counts is not None
        if self._shows_totals:
            self._shows_totals = False
            for variable in self._summed_state:
                variable.assign(np.zeros(variable.shape))
        self._own[0] += counts.rows if self._counts else 0
        # Keras weights the loss of a batch by its samples; it is the mean over its replicas and steps.
        part = 1.0 / (self._replicas * counts.steps)
        self._own[1] += counts.samples * part * result.loss
        for index, loss in enumerate(self._losses):
            values = result.losses.get(loss.output, {}).values()
            self._own[2 + index] += part * sum(values) / self._micro_batches
        if self._trackers:  # here, Keras on TensorFlow counts each batch once, whatever its size
            self._own[-1] += part if self._counts else 0
        for output in result.outputs:
            self._update(output, result, batch)
        self._steps += 1

    def agree(self) -> dict[str, Any]:
        """Return the results over all ranks and samples so far, equal on all ranks."""
        states = [np.asarray(each).astype(np.float64).reshape(-1) for each in self._summed_state]
        if self._shows_totals:
            states = [np.zeros_like(each) for each in states]
        own = np.concatenate([self._own, *states])
        self._sums += sum_equal(self._comm, own)
        self._own[:] = 0.0
        if self._gathered_state:
            self._update_gathered()
        self._show()
        return {name: _plain(value) for name, value in self._model.get_metrics_result().items()}

    def _update(self, output: int, result: StepResult, batch: Batch) -> None:
        """Update the metrics of an output with the samples of its micro-batches on this rank."""
        if output not in self._summed and output not in self._gathered:
            return
        target = batch.targets[output]
        if target is None:
            raise DataError(f"output {self._names[output]!r} has metrics, but the data have no targets")
        weights = batch.sample_weights[output]
        assert batch.counts is not None
        size, parts = batch.counts.size, []
        for micro_batch, prediction in sorted(result.outputs[output].items()):
            count = rows_of(batch, micro_batch)
            if count > 0:
                rows = slice(micro_batch * size, micro_batch * size + count)
                beside = result.beside.get(output, {}).get(micro_batch, (None, None))
                part = (
                    target[rows],
                    np.asarray(prediction)[:count],
                    None if weights is None else weights[rows],
                    *(None if each is None else np.asarray(each)[:count] for each in beside),
                )
                parts.append(part)
                if output in self._gathered:
                    # A copy, because the next step can overwrite the memory of the prediction.
                    self._pending.append(((self._steps, self._replica, micro_batch), output, *map(_copy, part)))
        if output in self._summed and parts:
            self._program(output)(*(_joined(each) for each in zip(*parts, strict=True)))

    def _program(self, output: int) -> Any:
        if output not in self._programs:
            import tensorflow as tf

            self._programs[output] = tf.function(self._summed[output].update, reduce_retracing=True)
        return self._programs[output]

    def _update_gathered(self) -> None:
        everything = self._comm.gather(self._pending, root=0)
        self._pending = []
        if everything is not None:
            ordered = sorted((each for part in everything for each in part), key=lambda each: (each[1], each[0]))
            for (output, _), parts in groupby(ordered, key=lambda each: (each[1], each[0][0])):  # of one step
                self._gathered[output].update(
                    *(_joined(each) for each in zip(*(part[2:] for part in parts), strict=True))
                )
            self._held = [np.asarray(each).copy() for each in self._gathered_state]
        self._held = self._comm.bcast(self._held, root=0)

    def _show(self) -> None:
        """Set the states of the model's metric objects to those over all ranks."""
        self._shows_totals = True
        rows, loss, *of_outputs = self._sums[: len(self._own)]
        counted = [rows, *of_outputs[-1:] * len(self._trackers)]
        trackers = (self._model._loss_tracker, *self._trackers)
        for tracker, value, count in zip(trackers, (loss, *of_outputs), counted, strict=False):
            tracker.total.assign(value)
            tracker.count.assign(count)
        states = _unpacked(self._sums[len(self._own) :], self._summed_state)
        for variable, value in zip(self._summed_state + self._gathered_state, states + self._held, strict=True):
            variable.assign(value)


def rows_of(batch: Batch, micro_batch: int) -> int:
    """Return the number of rows of a micro-batch that are samples."""
    assert batch.counts is not None
    size = batch.counts.size
    return min(max(batch.counts.rows - micro_batch * size, 0), size)


def is_additive(metric: Any, target: Array | None, output: Any) -> bool:
    """Return whether the states of shares of such samples add up to the state of all.

    Keras' own metrics are tested with a few random samples; others could behave differently for other samples.
    ``metric`` is reset.

    Args:
        metric: The metric, which is reset.
        target: An example of its targets, or None.
        output: The model's output that it is for.
    """
    kind, function = type(metric), getattr(metric, "_fn", None)
    defined = [_defined_by(kind, name) for name in ("update_state", "reset_state")]
    if not all(each.startswith("keras.") for each in (*defined, getattr(function, "__module__", "keras."))):
        return False
    draw = np.random.default_rng(0)
    prediction = draw.uniform(size=(4, *(size or 1 for size in output.shape[1:]))).astype(output.dtype)
    shape, dtype = (prediction.shape[1:], prediction.dtype) if target is None else (target.shape[1:], target.dtype)
    label = draw.integers(0, 2, size=(4, *shape)).astype(dtype)

    def state(rows: slice) -> Array:
        metric.reset_state()
        metric.update_state(label[rows], prediction[rows])
        return np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in metric.variables] or [np.empty(0)])

    whole, first, second = (state(slice(*rows)) for rows in ((0, 4), (0, 3), (3, 4)))
    metric.reset_state()
    return bool(np.allclose(whole, first + second, rtol=1e-3, atol=1e-5, equal_nan=True))


def _defined_by(kind: type, name: str) -> str:
    return next(each.__module__ for each in kind.__mro__ if name in vars(each))


def _built(model: Any, example: Samples) -> dict[int, _OfOutput]:
    """Return output -> its metrics, which Keras itself builds with targets and predictions of zeros."""
    import keras
    from keras import tree

    if own := [metric.name for layer in model._flatten_layers(include_self=False) for metric in layer._metrics]:
        raise UnsupportedModel(f"metric {own[0]!r} belongs to a layer: pass metrics to compile() instead")
    structure = getattr(model, "_functional", model)._outputs_struct
    if isinstance(structure, list | tuple) and len(structure) == 1:
        structure = structure[0]
    if model._compile_loss is not None and not model._compile_loss.built:
        model._compile_loss.build(structure, structure)
    if model._compile_metrics is None:
        return {}
    predictions = [np.zeros([2, *(size or 1 for size in each.shape[1:])], each.dtype) for each in model.outputs]
    targets = [
        prediction if target is None else np.zeros((2, *target.shape[1:]), target.dtype)
        for target, prediction in zip(example.targets, predictions, strict=True)
    ]
    compiled = model._compile_metrics
    tensors = [keras.ops.convert_to_tensor(each) for each in predictions]
    compiled.update_state(tree.pack_sequence_as(structure, targets), tree.pack_sequence_as(structure, tensors))
    compiled.reset_state()
    order: Sequence[int] = range(len(predictions))
    if isinstance(structure, Mapping) and compiled._resolved_output_names is not None:
        order = [sorted(structure).index(name) for name in compiled._resolved_output_names]
    listed = zip(order, compiled._flat_metrics, compiled._flat_weighted_metrics, strict=True)
    return {output: _OfOutput(_metrics(plain), _metrics(weighted)) for output, plain, weighted in listed}


def _metrics(found: Any) -> tuple[Any, ...]:
    return () if found is None else tuple(found.metrics)


def _unpacked(flat: Array, variables: Sequence[Any]) -> list[Array]:
    """Return the values of variables in a flat array."""
    found, at = [], 0
    for variable in variables:
        count = int(np.prod(variable.shape))
        found.append(flat[at : at + count].reshape(variable.shape))
        at += count
    return found


def _plain(value: Any) -> Any:
    """Return a float, or an array if a metric has several results (one per class)."""
    array = np.asarray(value)
    return array if array.ndim else float(array)


def _joined(arrays: Sequence[Any]) -> Any:
    if arrays[0] is None:
        return None
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _copy(array: Any) -> Any:
    return None if array is None else np.array(array)

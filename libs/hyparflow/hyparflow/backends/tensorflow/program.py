"""One stage on TensorFlow: ``hyparflow.backends.StageProgram``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hyparflow.backends import Array, Buffer, Outcome, Place, Reach, StageShape, Target
from hyparflow.backends.tensorflow.cut import (
    ProgramLayout,
    Programs,
    forward_only,
    fused,
    keeping,
    layout_of,
    recomputing,
)
from hyparflow.backends.tensorflow.losses import described
from hyparflow.backends.tensorflow.memory import await_device, default_device, host_view, is_host, tensor_of
from hyparflow.backends.tensorflow.stage_graph import Signature, StageGraph, StageParts, build_stage_graph
from hyparflow.errors import UnsupportedModel


@dataclass(frozen=True)
class _Kept:
    """The values that a forward pass keeps for its backward pass: values to feed, or the gradients themselves."""

    compiled: _Compiled
    values: list[Any]


@dataclass(frozen=True)
class _Compiled:
    layout: ProgramLayout
    programs: Programs


class TensorFlowStage:
    """A ``StageProgram`` on TensorFlow."""

    def __init__(self, parts: StageParts, variables: Mapping[str, Any], *, device_messages: bool = False) -> None:
        self._parts = parts
        self.variables = variables
        self.trainable = tuple(parts.trainable)
        self._compiled: dict[Signature, _Compiled] = {}
        self._kept: dict[int, _Kept] = {}
        self._reaches: Mapping[int | None, Reach] = {}
        self._loss_scale = 1.0
        self._in_host = is_host(default_device())
        self._device_messages = device_messages

    @property
    def stage(self) -> StageShape:
        return self._parts.stage

    def start_step(self, loss_scale: float = 1.0) -> None:
        self._loss_scale = loss_scale
        self._kept.clear()
        self._parts.seeds.start_step()
        for moving in self._parts.moving:
            moving.start_step()
        for accumulator in self._parts.accumulators:
            accumulator.zero()

    def prepare(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> None:
        compiled = self._program(_signature(self._parts, place, inputs, targets or {}, training))
        layout, programs = compiled.layout, compiled.programs
        _check_states(layout, place)
        if not training:
            return
        data = self._data(layout, place, inputs, targets or {}, True)
        rest = programs.forward(data)[programs.made :]
        if programs.backward is not None:
            tensors = self._parts.calls.graph.tensors
            batch = len(next(iter(inputs.values())))
            returned = [
                tf.zeros((batch, *tensors[index].shape), tensors[index].dtype)
                for index in layout.returned
                for _ in self.stage.sends[index]
            ]
            programs.backward([*(data[index] for index in programs.kept_data), *rest, *returned])
        for accumulator in self._parts.accumulators:
            accumulator.zero()

    def forward(
        self,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target] | None = None,
        training: bool = True,
    ) -> Outcome:
        compiled = self._program(_signature(self._parts, place, inputs, targets or {}, training))
        layout, programs = compiled.layout, compiled.programs
        data = self._data(layout, place, inputs, targets or {}, training)
        results = programs.forward(data)
        made, rest = results[: programs.made], results[programs.made :]
        if training:
            if programs.backward is None:
                values = rest[: len(layout.input_gradients)]
            else:
                values = [*(data[index] for index in programs.kept_data), *rest]
            self._kept[place.micro_batch] = _Kept(compiled, values)
        return self._outcome(layout, place, made, tuple(inputs.values()))

    def backward(self, place: Place, gradients: Mapping[int, Sequence[Array]]) -> Mapping[int, Array]:
        kept = self._kept.pop(place.micro_batch)
        layout, programs = kept.compiled.layout, kept.compiled.programs
        if programs.backward is None:
            found = kept.values
        else:
            tensors = self._parts.calls.graph.tensors
            fed = [tensor_of(array, tensors[index].dtype) for index in layout.returned for array in gradients[index]]
            found = programs.backward([*kept.values, *fed])
        sent = self._for_others(found[: len(layout.input_gradients)], ())
        if not self._in_host:
            await_device()
        return dict(zip(layout.input_gradients, sent, strict=True))

    def gradients(self) -> tuple[Buffer, ...]:
        return tuple(accumulator.buffer() for accumulator in self._parts.accumulators)

    def reaches(self) -> Mapping[int | None, Reach]:
        return self._reaches

    def statistics(self) -> tuple[Buffer, ...]:
        return tuple(moving.buffer() for moving in self._parts.moving)

    def finish_step(self, place: Place) -> None:
        for moving in self._parts.moving:
            moving.finish_step(place)
        self._parts.seeds.finish_step(place.total)

    def _program(self, signature: Signature) -> _Compiled:
        if signature not in self._compiled:
            graph = build_stage_graph(self._parts, signature)
            self._compiled[signature] = _Compiled(layout_of(graph), self._cut(graph, signature))
            if signature.training:
                self._reaches = graph.reaches
        return self._compiled[signature]

    def _cut(self, graph: StageGraph, signature: Signature) -> Programs:
        if not signature.training:
            return forward_only(graph)
        if not graph.returned:
            return fused(graph)
        return recomputing(graph) if self.stage.recompute else keeping(graph)

    def _data(
        self,
        layout: ProgramLayout,
        place: Place,
        inputs: Mapping[int, Array],
        targets: Mapping[int, Target],
        training: bool,
    ) -> list[Any]:
        """Return the values that forward is fed with, in the order of ``StageGraph.data``."""
        parts = self._parts
        tensors = parts.calls.graph.tensors
        if not training:
            parts.seeds.start_step()
            for moving in parts.moving:
                moving.read()
        fed = [tensor_of(inputs[index], tensors[index].dtype) for index in layout.inputs]
        fed += [tensor_of(targets[output].value, dtype) for output, dtype in layout.targets]
        fed += [tensor_of(targets[output].sample_weight, dtype) for output, dtype in layout.sample_weights]
        order = place.replica * place.micro_batches + place.micro_batch
        fed.append(tf.constant(parts.seeds.at(order if training else 0), layout.seeds))
        fed += [moving.value for moving in parts.moving]
        fed += [parts.states[name].value.read_value() for name in layout.states]
        fed.append(tf.constant(described(place.portion, len(parts.losses)), "float64"))
        fed.append(tf.constant(self._loss_scale / place.shares, "float64"))
        return fed

    def _outcome(self, layout: ProgramLayout, place: Place, made: Sequence[Any], inputs: Sequence[Array]) -> Outcome:
        sent = made[: len(layout.sends)]
        remaining = iter(made[len(layout.sends) :])

        def arrays(indices: Sequence[int]) -> dict[int, Array]:
            return {index: _outside(host_view(next(remaining)), inputs) for index in indices}

        sends = dict(zip(layout.sends, self._for_others(sent, inputs), strict=True))
        if self._device_messages:
            await_device()
        outputs = arrays(layout.outputs)
        masks, logits = arrays(layout.masks), arrays(layout.logits)
        loss, *losses = next(remaining).numpy().tolist()
        if layout.moves:
            for moving in self._parts.moving:
                moving.gather(place, host_view(next(remaining)))
        for name in layout.new_states:
            # A variable keeps the memory of what it is assigned, which may be that of the inputs, the user's data.
            self._parts.states[name].assign(tf.raw_ops.DeepCopy(x=next(remaining)))
        beside = {index: (masks.get(index), logits.get(index)) for index in {*masks, *logits}}
        return Outcome(sends, outputs, beside, dict(zip(layout.loss_outputs, losses, strict=True)), loss)

    def _for_others(self, made: Sequence[Any], inputs: Sequence[Array]) -> list[Array]:
        """Return values for other stages that do not change with ``inputs``."""
        if self._device_messages:
            return [tf.raw_ops.DeepCopy(x=value) for value in made]
        return [_outside(host_view(value), inputs) for value in made]


def _check_states(layout: ProgramLayout, place: Place) -> None:
    """Raise UnsupportedModel if layers assign variables and a step computes the batch in several parts."""
    parts = place.replicas * place.micro_batches
    if layout.new_states and parts > 1:
        raise UnsupportedModel(
            f"'{layout.new_states[0]}' is assigned by its layer in the forward pass, but a step computes the batch in "
            f"{parts} parts ({place.replicas} replicas x {place.micro_batches} micro-batches), each of which would "
            "assign it: use replicas=1 and micro_batches=1"
        )


def _outside(made: Array, inputs: Sequence[Array]) -> Array:
    """Return an array, copied if it is (a view of) a received one: a mask, the output of a Reshape."""
    received = (each for each in inputs if isinstance(each, np.ndarray))
    return np.array(made) if any(np.may_share_memory(made, each) for each in received) else made


def _signature(
    parts: StageParts, place: Place, inputs: Mapping[int, Array], targets: Mapping[int, Target], training: bool
) -> Signature:
    mine = {
        output: targets[output]
        for output in sorted(targets)
        if parts.calls.graph.outputs[output] in parts.stage.outputs
    }
    batch = next((len(inputs[index]) for index in parts.stage.receives), 0)
    return Signature(
        batch,
        training,
        place.portion is not None and place.portion.filled,
        tuple((output, str(t.value.dtype), t.value.shape) for output, t in mine.items()),
        tuple(
            (output, str(t.sample_weight.dtype), t.sample_weight.shape)
            for output, t in mine.items()
            if t.sample_weight is not None
        ),
    )

"""One stage, forward and backward, as one TensorFlow graph, from which programs are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from keras.src.backend import get_keras_mask

from hyparflow.backends import Reach, SpatialPart, StageShape
from hyparflow.backends.tensorflow.losses import PORTION, OutputLoss, logits_of, penalties, share_of_batch
from hyparflow.backends.tensorflow.memory import Accumulator
from hyparflow.backends.tensorflow.scope import Scope, reads
from hyparflow.backends.tensorflow.seeds import Seeds
from hyparflow.backends.tensorflow.spatial import SpatialNodes
from hyparflow.backends.tensorflow.statistics import Moving
from hyparflow.errors import UnsupportedModel
from hyparflow.graph.calls import Calls


@dataclass(frozen=True)
class StageParts:
    """The parts of a stage that its graph is built from.

    ``metrics``: True if the model has any. ``weights``: variables that the nodes read and only the optimizer changes.
    ``states``: other variables that do not train, which nodes may assign. ``regularized``: trainable variables whose
    regularizer counts on this stage. ``spatial``: this rank's part of the images, None: whole images. ``shapes``: of
    the model's tensors as a whole.
    """

    calls: Calls
    stage: StageShape
    trainable: Mapping[str, Any]
    weights: Mapping[str, Any]
    states: Mapping[str, Any]
    regularized: Sequence[str]
    moving: tuple[Moving, ...]
    seeds: Seeds
    losses: tuple[OutputLoss, ...]
    metrics: bool
    accumulators: tuple[Accumulator, ...]
    spatial: SpatialPart | None
    shapes: Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Signature:
    """The properties of a micro-batch that a graph is built for.

    ``targets`` and ``sample_weights``: (output, dtype, shape). ``filled``: the last rows of the micro-batch may be
    padding.
    """

    batch: int
    training: bool
    filled: bool
    targets: tuple[tuple[int, str, tuple[int, ...]], ...]
    sample_weights: tuple[tuple[int, str, tuple[int, ...]], ...]


@dataclass
class StageGraph:
    """The tensors of the graph, first those to feed, then those to fetch.

    ``returned``: for each sent tensor that is differentiable, its gradients by consumer. ``losses``: a vector with the
    loss of the stage, then the compiled loss of each of ``loss_outputs``.
    """

    inputs: dict[int, Any] = field(default_factory=dict)
    targets: dict[int, Any] = field(default_factory=dict)
    sample_weights: dict[int, Any] = field(default_factory=dict)
    seeds: Any = None
    moving: list[Any] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    portion: Any = None
    scale: Any = None
    returned: dict[int, list[Any]] = field(default_factory=dict)

    sends: dict[int, Any] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    masks: dict[int, Any] = field(default_factory=dict)
    logits: dict[int, Any] = field(default_factory=dict)
    loss_outputs: list[int] = field(default_factory=list)
    losses: Any = None
    moving_added: list[Any] = field(default_factory=list)
    new_states: dict[str, Any] = field(default_factory=dict)
    input_gradients: dict[int, Any] = field(default_factory=dict)
    accumulate: list[Any] = field(default_factory=list)
    reaches: dict[int | None, Reach] = field(default_factory=dict)

    spatial: SpatialNodes | None = None
    whole: Any = None

    @property
    def data(self) -> list[Any]:
        """The tensors to feed to a forward pass, in order."""
        fed = [*self.inputs.values(), *self.targets.values(), *self.sample_weights.values(), self.seeds]
        return [*fed, *self.moving, *self.states.values(), self.portion, self.scale]

    @property
    def gradients_fed(self) -> list[Any]:
        """The further tensors to feed to a backward pass, in order."""
        return [gradient for gradients in self.returned.values() for gradient in gradients]

    @property
    def made(self) -> list[Any]:
        """The results of a forward pass, in order."""
        given = [*self.sends.values(), *self.outputs.values(), *self.masks.values(), *self.logits.values(), self.losses]
        return [*given, *self.moving_added, *self.new_states.values()]


def build_stage_graph(parts: StageParts, signature: Signature) -> StageGraph:
    """Trace forward and, for training, backward of a stage."""
    graph = StageGraph()

    def trace() -> None:
        _feeds(graph, parts, signature)
        trainable = reads(parts.trainable)
        values = dict(graph.inputs)
        aux = _forward(graph, parts, signature, values, trainable)
        total = _losses(graph, parts, signature, values, trainable, added=aux)
        graph.sends = {tensor: values[tensor] for tensor in parts.stage.sends}
        graph.outputs = {tensor: values[tensor] for tensor in parts.stage.outputs}
        if parts.metrics:
            graph.masks = _attached(graph.outputs, get_keras_mask)
            graph.logits = _attached(graph.outputs, logits_of)
        if signature.training:
            _backward(graph, parts, trainable, total)
        if graph.spatial is not None:
            graph.spatial.order_messages()

    graph.whole = tf.compat.v1.wrap_function(trace, [])
    return graph


def _placeholder(dtype: str, shape: Sequence[int]) -> Any:
    return tf.compat.v1.placeholder(dtype, tuple(shape))


def _feeds(graph: StageGraph, parts: StageParts, signature: Signature) -> None:
    tensors = parts.calls.graph.tensors
    for index in parts.stage.receives:
        graph.inputs[index] = _placeholder(tensors[index].dtype, (signature.batch, *tensors[index].shape))
    for output, dtype, shape in signature.targets:
        graph.targets[output] = _placeholder(dtype, shape)
    for output, dtype, shape in signature.sample_weights:
        graph.sample_weights[output] = _placeholder(dtype, shape)
    states = parts.seeds.states
    graph.seeds = _placeholder(states[0].dtype if states else "int64", (len(states), 2))
    graph.moving = [_placeholder(moving.dtype, moving.decay.shape) for moving in parts.moving]
    graph.states = {name: _placeholder(v._dtype, v.shape) for name, v in parts.states.items()}
    graph.portion = _placeholder("float64", (PORTION + len(parts.losses),))
    graph.scale = _placeholder("float64", ())
    for index, consumers in parts.stage.sends.items():
        if signature.training and tensors[index].differentiable:
            shape = (signature.batch, *tensors[index].shape)
            graph.returned[index] = [_placeholder(tensors[index].dtype, shape) for _ in consumers]


def _forward(
    graph: StageGraph, parts: StageParts, signature: Signature, values: dict[int, Any], trainable: Mapping[str, Any]
) -> list[Any]:
    """Run the nodes and return the losses that layers added."""
    weights = reads(parts.weights)
    known = [
        *((parts.trainable[name], value) for name, value in trainable.items()),
        *((parts.weights[name], value) for name, value in weights.items()),
        *((parts.states[name], value) for name, value in graph.states.items()),
    ]
    states = tf.unstack(graph.seeds) if parts.seeds.generators else []
    rows = tf.cast(graph.portion[0], "int32") if signature.filled else None
    scope = Scope([*known, *zip(parts.seeds.states, states, strict=True)], rows)
    for moving, flat in zip(parts.moving, graph.moving, strict=True):
        moving.feed(scope, flat)
    nodes = parts.calls.graph.nodes
    if parts.spatial is not None:
        one_program = parts.stage.recompute or not graph.returned
        graph.spatial = SpatialNodes(scope, parts.spatial, parts.shapes, one_program=one_program)
    with scope:
        for index in sorted(parts.stage.nodes):
            parts.seeds.before(index, scope, states)
            before = len(scope.assigned)
            call = parts.calls.calls[index]
            if graph.spatial is None:
                scope.run(call, values, nodes[index].outputs, signature.training)
            else:
                graph.spatial.run(nodes[index], call, values, training=signature.training)
            if len(scope.assigned) > before:
                _check_assigned(scope, parts, nodes[index].name)
    if signature.training:
        parts.seeds.after(scope)
        graph.moving_added = [
            moving.added(scope, flat) for moving, flat in zip(parts.moving, graph.moving, strict=True)
        ]
    graph.new_states = {
        name: scope.get_current_value(variable)
        for name, variable in parts.states.items()
        if id(variable) in scope.assigned
    }
    return scope.losses


def _attached(outputs: Mapping[int, Any], get: Callable[[Any], Any]) -> dict[int, Any]:
    found = {tensor: get(value) for tensor, value in outputs.items()}
    return {tensor: tf.convert_to_tensor(value) for tensor, value in found.items() if value is not None}


def _check_assigned(scope: Scope, parts: StageParts, node: str) -> None:
    known = [*parts.states.values(), *parts.seeds.states, *(v for moving in parts.moving for v in moving.variables)]
    unknown = set(scope.assigned) - {id(variable) for variable in known}
    if unknown:
        names = ", ".join(scope.assigned[key].path for key in sorted(unknown))
        raise UnsupportedModel(
            f"'{node}' assigns variables of other layers or trainable variables ({names}), which other ranks would "
            "miss. A layer that draws random numbers needs a keras.random.SeedGenerator of its own as an attribute"
        )


def _losses(
    graph: StageGraph,
    parts: StageParts,
    signature: Signature,
    values: Mapping[int, Any],
    trainable: Mapping[str, Any],
    *,
    added: Sequence[Any],
) -> Any | None:
    """Return the stage's share of the total loss, None without any, and set the vector of losses."""
    compiled: dict[int, list[Any]] = {}
    weighted = []
    for index, loss in enumerate(parts.losses):
        if loss.output in graph.targets:
            predicted = values[parts.calls.graph.outputs[loss.output]]
            compared = (graph.targets[loss.output], predicted, graph.sample_weights.get(loss.output))
            value = share_of_batch(
                loss.function, *compared, portion=graph.portion, index=index, filled=signature.filled
            )
            compiled.setdefault(loss.output, []).append(value)
            weighted.append(value if loss.weight is None else value * tf.convert_to_tensor(loss.weight, value.dtype))
    weighted += [tf.reduce_sum(value) * tf.cast(graph.portion[1], value.dtype) for value in added]
    weighted += penalties((parts.trainable[name].regularizer, trainable[name]) for name in parts.regularized)
    total = tf.add_n([tf.cast(value, weighted[0].dtype) for value in weighted]) if weighted else None
    graph.loss_outputs = list(compiled)
    shown = [total if total is not None else tf.zeros(()), *(tf.add_n(each) for each in compiled.values())]
    graph.losses = tf.stack([tf.cast(value, "float64") for value in shown])
    return total


def _backward(graph: StageGraph, parts: StageParts, trainable: Mapping[str, Any], total: Any | None) -> None:
    tensors = parts.calls.graph.tensors
    received = {index: value for index, value in graph.inputs.items() if tensors[index].differentiable}
    sources: dict[int | None, tuple[Any, Any]] = {}
    if total is not None:
        sources[None] = total, tf.cast(graph.scale, total.dtype)
    for index, returned in graph.returned.items():
        gradient = returned[0]
        for other in returned[1:]:
            gradient += other
        sources[index] = graph.sends[index], gradient
    wanted = [*received.values(), *trainable.values()]
    found = _gradients([*sources.values()], wanted)
    for source, pair in sources.items():
        alone = found if len(sources) == 1 else _gradients([pair], wanted)
        reached = [gradient is not None for gradient in alone]
        graph.reaches[source] = Reach(
            frozenset(name for name, here in zip(trainable, reached[len(received) :], strict=True) if here),
            frozenset(index for index, here in zip(received, reached, strict=False) if here),
        )
    gradients = [
        tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
        for value, gradient in zip(wanted, found, strict=True)
    ]
    graph.input_gradients = dict(zip(received, gradients[: len(received)], strict=True))
    by_name = dict(zip(trainable, gradients[len(received) :], strict=True))
    graph.accumulate = [accumulator.add(by_name) for accumulator in parts.accumulators]


def _gradients(sources: Sequence[tuple[Any, Any]], wanted: Sequence[Any]) -> list[Any]:
    """Return the gradients of ``sources`` (tensor, its gradient) by each of ``wanted``; None without dependency."""
    if not sources or not wanted:
        return [None] * len(wanted)
    made, given = zip(*sources, strict=True)
    found: list[Any] = tf.gradients(list(made), list(wanted), grad_ys=list(given))
    return found

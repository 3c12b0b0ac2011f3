"""The programs of a stage, cut out of its graph: forward, backward, and both in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hyparflow.backends.tensorflow.stage_graph import StageGraph


@dataclass(frozen=True)
class ProgramLayout:
    """The order of the values that a graph is fed with and returns, which remains after the graph is dropped.

    ``targets`` and ``sample_weights``: (output, dtype). ``moves``: True if BatchNorm contributes to moving statistics.
    The other names are those of ``StageGraph``.
    """

    inputs: tuple[int, ...]
    targets: tuple[tuple[int, str], ...]
    sample_weights: tuple[tuple[int, str], ...]
    seeds: str
    states: tuple[str, ...]
    returned: tuple[int, ...]
    sends: tuple[int, ...]
    outputs: tuple[int, ...]
    masks: tuple[int, ...]
    logits: tuple[int, ...]
    loss_outputs: tuple[int, ...]
    new_states: tuple[str, ...]
    input_gradients: tuple[int, ...]
    moves: bool


def layout_of(graph: StageGraph) -> ProgramLayout:
    """Return the layout of a built graph."""
    return ProgramLayout(
        tuple(graph.inputs),
        tuple((output, value.dtype.name) for output, value in graph.targets.items()),
        tuple((output, value.dtype.name) for output, value in graph.sample_weights.items()),
        graph.seeds.dtype.name,
        tuple(graph.states),
        tuple(graph.returned),
        tuple(graph.sends),
        tuple(graph.outputs),
        tuple(graph.masks),
        tuple(graph.logits),
        tuple(graph.loss_outputs),
        tuple(graph.new_states),
        tuple(graph.input_gradients),
        bool(graph.moving_added),
    )


@dataclass(frozen=True)
class Program:
    """A function cut out of a stage's graph, from tensors to tensors."""

    function: Any

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run the function. Binding hundreds of arguments to a signature would take longer than many a kernel."""
        results: list[Any] = self.function._call_flat(list(values), self.function.captured_inputs)
        return results


@dataclass(frozen=True)
class Programs:
    """Compiled functions on flat lists, in the orders of ``StageGraph``.

    ``forward``: data -> the first ``made`` results, then the residuals for backward or, if ``backward`` is None and the
    stage trains, the gradients of the inputs. ``backward``: the data with the indices ``kept_data``, the residuals, the
    returned gradients -> the gradients of the inputs.
    """

    forward: Program
    backward: Program | None
    made: int
    kept_data: tuple[int, ...]


def forward_only(graph: StageGraph) -> Programs:
    """Build the program for evaluation and prediction."""
    return Programs(_program(graph, graph.data, graph.made), None, len(graph.made), ())


def fused(graph: StageGraph) -> Programs:
    """Build forward and backward in one program, for a stage that sends nothing."""
    fetched = [*graph.made, *graph.input_gradients.values(), *graph.accumulate]
    return Programs(_program(graph, graph.data, fetched), None, len(graph.made), ())


def recomputing(graph: StageGraph) -> Programs:
    """Build a forward program that keeps only its data, and a backward program that starts with forward."""
    fetched = [*graph.input_gradients.values(), *graph.accumulate]
    backward = _program(graph, [*graph.data, *graph.gradients_fed], fetched)
    return Programs(_program(graph, graph.data, graph.made), backward, len(graph.made), tuple(range(len(graph.data))))


def keeping(graph: StageGraph) -> Programs:
    """Build a forward program that keeps the values that backward needs."""
    residuals, data = _residuals(graph)
    forward = _program(graph, graph.data, [*graph.made, *residuals])
    backward = _program(
        graph,
        [*(graph.data[index] for index in data), *residuals, *graph.gradients_fed],
        [*graph.input_gradients.values(), *graph.accumulate],
    )
    return Programs(forward, backward, len(graph.made), data)


def _program(graph: StageGraph, fed: Sequence[Any], fetched: Sequence[Any]) -> Program:
    """Build the function from ``fed`` to ``fetched``, without operations before ``fed``.

    ``WrappedFunction.prune`` would also copy the operations that compute the fed tensors, and fails if only some
    outputs of an operation are fed (FusedBatchNormV3).
    """
    definition, read = _definition(graph, fed, fetched)
    captured = {inner.name: outer for outer, inner in graph.whole.graph.captures if inner.name in read}
    names = [value.name for value in fed]
    given = [fetch.name for fetch in fetched]
    imported = [name for name in given if name not in names]

    def body(*values: Any) -> list[Any]:
        known = dict(zip(names, values, strict=True))
        inputs = {name: value for name, value in known.items() if name in read}
        inputs |= {name: tf.convert_to_tensor(outer) for name, outer in captured.items()}
        made = tf.graph_util.import_graph_def(definition, inputs, imported, name="stage")
        known.update(zip(imported, made, strict=True))
        return [known[name] for name in given if isinstance(known[name], tf.Tensor)]

    signature = [tf.TensorSpec(value.shape, value.dtype) for value in fed]
    return Program(tf.function(body, input_signature=signature, autograph=False).get_concrete_function())


def _definition(graph: StageGraph, fed: Sequence[Any], fetched: Sequence[Any]) -> tuple[Any, set[str]]:
    """Return the operations in between as a GraphDef, and the names that they read from ``fed`` and variables."""
    outer = {value.name for value in fed} | {inner.name for inner in graph.whole.graph.internal_captures}
    sources = {value.op for value in (*fed, *graph.whole.graph.internal_captures)}
    waiting = _operations(fetch for fetch in fetched if fetch.name not in outer)
    chosen = set(waiting)
    read = set()
    while waiting:
        operation = waiting.pop()
        read |= {value.name for value in operation.inputs if value.name in outer}
        before = {value.op for value in operation.inputs if value.name not in outer}
        before |= set(operation.control_inputs) - sources
        waiting += before - chosen
        chosen |= before
    names = {operation.name for operation in chosen}
    whole = graph.whole.graph.as_graph_def()
    definition = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name in names:
            inputs = [name for name in node.input if not name.startswith("^") or name[1:] in names]
            node.ClearField("input")
            node.input.extend(inputs)
            node.attr.pop("_class", None)  # colocation, perhaps with an operation that is not included
            definition.node.append(node)
    return definition, read


def _residuals(graph: StageGraph) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of forward that backward reads, and the indices of the data that it reads.

    Values that depend on weights and constants only (a cast of a kernel) are recomputed instead of kept. Messages are
    kept even if they depend on nothing else, because a part can receive rows without sending any.
    """
    forward = _ancestors(_operations(graph.made))
    backward = _ancestors(_operations([*graph.input_gradients.values(), *graph.accumulate])) - forward
    fed = {data.op for data in graph.data}
    messages = set() if graph.spatial is None else set(graph.spatial.received)
    varying = _descendants(fed | messages, forward)
    read = {id(value): value for operation in _ordered(backward) for value in operation.inputs}
    residuals = [value for value in read.values() if value.op in varying and value.op not in fed]
    wanted = {id(value) for value in read.values()} | {id(value) for value in graph.input_gradients.values()}
    return residuals, tuple(index for index, data in enumerate(graph.data) if id(data) in wanted)


def _operations(fetches: Iterable[Any]) -> list[Any]:
    return [fetch.op if hasattr(fetch, "op") else fetch for fetch in fetches]


def _before(operation: Any) -> list[Any]:
    return [*(value.op for value in operation.inputs), *operation.control_inputs]


def _ancestors(operations: Sequence[Any]) -> set[Any]:
    """Return the operations and all their dependencies."""
    seen = set(operations)
    waiting = list(seen)
    while waiting:
        for operation in _before(waiting.pop()):
            if operation not in seen:
                seen.add(operation)
                waiting.append(operation)
    return seen


def _descendants(roots: set[Any], within: set[Any]) -> set[Any]:
    """Return the operations of ``within`` that depend on a root."""
    after: dict[Any, list[Any]] = {}
    for operation in within:
        for earlier in _before(operation):
            after.setdefault(earlier, []).append(operation)
    seen = set(roots)
    waiting = list(roots)
    while waiting:
        for operation in after.get(waiting.pop(), ()):
            if operation not in seen:
                seen.add(operation)
                waiting.append(operation)
    return seen


def _ordered(operations: set[Any]) -> list[Any]:
    """Return operations in the order of their creation, which is the same in every process."""
    return sorted(operations, key=lambda operation: operation._id)

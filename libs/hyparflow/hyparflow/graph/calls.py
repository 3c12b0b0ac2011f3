"""The calls of a Keras model: nested models are opened, shared layers have several calls, masks are tensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hyparflow.errors import UnsupportedModel
from hyparflow.graph.types import Graph, Node, Tensor

#: The start of the path of a seed generator's state.
_SEED_GENERATOR = re.compile(r"^seed_generator_\d+/")
#: Methods of a model that are never called on a cut model -> a replacement.
_NEVER_CALLED = {
    "train_step": "use compile(loss=...), add_loss() in a layer, or regularizers",
    "test_step": "use compile(loss=..., metrics=[...])",
    "predict_step": "use layers of the model, or process the result of predict()",
    "compute_loss": "use compile(loss=...), add_loss() in a layer, or regularizers",
    "compute_metrics": "use compile(metrics=[...])",
}
#: Entries of a layer's configuration that change neither its cost nor its structure.
_COSTLESS = {"name", "seed"}


@dataclass(frozen=True)
class Call:
    """A node's Keras operation and the arguments of its call.

    ``arguments``: Keras' own, to be filled with ``fill_in({id(KerasTensor): value})``. ``inputs``: id(KerasTensor) ->
    tensor of the graph. ``input_masks``: tensor -> the tensor that is its mask. ``output_masks``: the mask of each
    plain output of the operation, or None. These are the masks of a run, not those of symbolic tensors.
    """

    operation: Any
    arguments: Any
    inputs: Mapping[int, int]
    input_masks: Mapping[int, int]
    output_masks: tuple[int | None, ...]

    def run(self, values: Mapping[int, Any], training: bool) -> Any:
        """Call the operation on ``values``, by id(KerasTensor).

        ``training`` overrides the call's own argument, as in Keras' functional models.
        """
        arguments, keywords = self.arguments_for(values, training)
        return self.operation(*arguments, **keywords)

    def arguments_for(self, values: Mapping[int, Any], training: bool) -> tuple[Any, Any]:
        """Return the arguments of the operation with ``values`` for its symbolic tensors."""
        arguments, keywords = self.arguments.fill_in(values)
        if "training" in getattr(self.operation, "_call_context_args", ()):
            keywords["training"] = training
        return arguments, keywords


@dataclass(frozen=True)
class Calls:
    """A graph, and the call of each of its nodes."""

    graph: Graph
    calls: tuple[Call, ...]


def graph_of(model: Any) -> Graph:
    """Return the graph of a Sequential, Functional or nested ``keras.Model``.

    Raises:
        UnsupportedModel: The model, or one of its layers, cannot be cut; the message names it and the reason.
    """
    return calls_of(model).graph


def variables_of(model: Any) -> dict[str, Any]:
    """Return name -> Keras variable, for all variables of a model, including seed states, in Keras' order.

    The name is the variable's path. If nested models have variables with equal paths, the second gets ":1", and so on.
    Keras numbers seed generators over the whole process; here the numbers are removed.
    """
    names: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for variable in model.variables:
        path = _SEED_GENERATOR.sub("seed_generator/", variable.path)
        count = seen.get(path, 0)
        seen[path] = count + 1
        names[f"{path}:{count}" if count else path] = variable
    return names


def calls_of(model: Any) -> Calls:
    """Return the graph of a model together with the calls of its nodes."""
    functional = _functional(model)
    if functional is None:
        raise UnsupportedModel(_why_no_graph(model))
    _refuse_own_training(model)
    walk = _Walk({id(variable): name for name, variable in variables_of(model).items()})
    inputs = tuple(walk.tensor(symbol, symbol.name, None) for symbol in functional.inputs)
    values = dict(zip(map(id, functional.inputs), inputs, strict=True))
    walk.run(functional, values, "")
    outputs = tuple(values[id(symbol)] for symbol in functional.outputs)
    walk.take_masks_of_a_run(functional.inputs, inputs, outputs)
    fingerprint = walk.fingerprint(outputs)
    graph = Graph(
        model.name, tuple(walk.nodes), walk.finished_tensors(), inputs, outputs, fingerprint, walk.bound_together()
    )
    return Calls(graph, tuple(walk.calls))


def layers_in(operation: Any) -> list[Any]:
    """Return a layer and all layers inside it; empty for an operation that is not a layer."""
    return list(operation._flatten_layers()) if hasattr(operation, "_flatten_layers") else []


def _makes_masks(layer: Any) -> bool:
    """Return True for Keras layers that create masks, and for layers with their own ``compute_mask``."""
    import keras

    own = type(layer).compute_mask is not keras.Layer.compute_mask and not type(layer).__module__.startswith("keras.")
    return own or isinstance(layer, keras.layers.Masking) or bool(getattr(layer, "mask_zero", False))


def batch_norms(operation: Any) -> list[Any]:
    """Return the BatchNormalization layers of an operation whose moving statistics change in training."""
    import keras

    return [
        layer
        for layer in layers_in(operation)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.renorm
    ]


def _functional(model: Any) -> Any | None:
    """Return the model as Keras' Functional if calling it does nothing else, else None."""
    import keras
    from keras.src.models.functional import Functional

    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        return model._functional
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    return None


def _why_no_graph(model: Any) -> str:
    import keras

    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        return f"Sequential model '{model.name}' is not built: start it with keras.Input(shape), or call build() first"
    return (
        f"model '{model.name}' ({type(model).__name__}) has a call() of its own, so its graph is not accessible: make "
        "it functional, keras.Model(inputs, outputs); a subclassed *layer* or model inside it is supported as one node"
    )


def _refuse_own_training(model: Any) -> None:
    import keras

    for name, cure in _NEVER_CALLED.items():
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UnsupportedModel(
                f"model '{model.name}' ({type(model).__name__}) overrides {name}(), which a cut model never calls: "
                f"{cure}"
            )


def _refuse_layers(operation: Any) -> None:
    """Raise UnsupportedModel for Keras' own layers that are known to be impossible to cut."""
    import keras

    for layer in layers_in(operation):
        if isinstance(layer, keras.layers.SpectralNormalization):
            raise UnsupportedModel(
                f"SpectralNormalization '{layer.name}' assigns the weights that it wraps in its forward pass, which "
                "each micro-batch would do again: leave it out, or bound the weights by a constraint "
                "(kernel_constraint=keras.constraints.MaxNorm(...))"
            )
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
            raise UnsupportedModel(
                f"{type(layer).__name__} '{layer.name}' is stateful: its state goes from one batch to the next, and a "
                "step's micro-batches are parts of one batch: say stateful=False, and feed the state in as an input "
                "(initial_state=...)"
            )


@dataclass
class _Walk:
    """A collector of nodes and tensors, in the order in which Keras runs them."""

    variable_names: Mapping[int, str]
    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tensors: list[tuple[str, tuple[int, ...], str, int | None]] = field(default_factory=list)
    masks: dict[int, int] = field(default_factory=dict)
    times_called: dict[str, int] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    layers: dict[int, _Layer] = field(default_factory=dict)

    def run(self, functional: Any, values: dict[int, int], prefix: str) -> None:
        """Walk a Functional; ``values`` (id(KerasTensor) -> tensor) has its inputs, and its other tensors are added."""
        for depth in sorted(functional._nodes_by_depth, reverse=True):
            for node in functional._nodes_by_depth[depth]:
                if node.is_input or id(node.outputs[0]) in values:
                    continue
                nested = _functional(node.operation)
                if nested is not None and self.can_open(nested, node, values):
                    inner = {
                        id(symbol): values[id(argument)]
                        for symbol, argument in zip(nested.inputs, node.input_tensors, strict=True)
                    }
                    self.run(nested, inner, f"{prefix}{node.operation.name}/")
                    values.update(
                        (id(outer), inner[id(symbol)])
                        for outer, symbol in zip(node.outputs, nested.outputs, strict=True)
                    )
                else:
                    self.call(node, values, prefix)

    def can_open(self, nested: Any, node: Any, values: Mapping[int, int]) -> bool:
        """Return whether a nested model can be replaced by its calls; otherwise it stays one node."""
        tensors = [values[id(argument)] for argument in node.input_tensors]
        return (
            len(tensors) == len(nested.inputs)
            and not any(tensor in self.masks for tensor in tensors)
            and node.arguments.kwargs.get("mask") is None
            and node.operation.activity_regularizer is None
            and all(
                (tuple(symbol.shape[1:]), symbol.dtype) == self.tensors[tensor][1:3]
                for symbol, tensor in zip(nested.inputs, tensors, strict=True)
            )
        )

    def call(self, keras_node: Any, values: dict[int, int], prefix: str) -> None:
        """Add one call of an operation."""
        operation = keras_node.operation
        _refuse_layers(operation)
        path = self.paths.setdefault(id(operation), prefix + operation.name)
        count = self.times_called.get(path, 0)
        self.times_called[path] = count + 1
        name = f"{path}:{count}" if count else path
        index = len(self.nodes)
        inputs = {id(symbol): values[id(symbol)] for symbol in keras_node.input_tensors}
        input_masks = {tensor: self.masks[tensor] for tensor in inputs.values() if tensor in self.masks}
        outputs = []
        for position, symbol in enumerate(keras_node.outputs):
            outputs.append(self.tensor(symbol, f"{name}.{position}" if position else name, index))
            values[id(symbol)] = outputs[-1]
        output_masks = tuple(self.mask_of(symbol, values[id(symbol)], index) for symbol in keras_node.outputs)
        layer = self.layer(operation)
        every_input = tuple(dict.fromkeys([*inputs.values(), *input_masks.values()]))
        every_output = (*outputs, *(mask for mask in output_masks if mask is not None))
        shapes = ",".join(f"{self.tensors[tensor][1]}:{self.tensors[tensor][2]}" for tensor in every_input)
        signature = f"{layer.configuration}({_plain_arguments(keras_node.arguments)})[{shapes}]"
        self.nodes.append(
            Node(
                index=index,
                name=name,
                kind=type(operation).__name__,
                layer=path,
                inputs=every_input,
                outputs=every_output,
                variables=layer.variables,
                parameters=layer.parameters,
                signature=signature,
            )
        )
        self.calls.append(Call(operation, keras_node.arguments, inputs, input_masks, output_masks))

    def tensor(self, symbol: Any, name: str, producer: int | None) -> int:
        """Add a tensor, and return its index."""
        shape, dtype = tuple(symbol.shape[1:]), str(symbol.dtype)
        if len(symbol.shape) == 0 or None in shape:
            raise UnsupportedModel(
                f"'{name}' has the shape {tuple(symbol.shape)}: only the batch axis may be open, "
                "because messages between stages have a fixed size; pass the whole shape to keras.Input"
            )
        if dtype == "string":
            raise UnsupportedModel(f"'{name}' has strings, which have no fixed size: preprocess them in the data")
        # Only inputs are reliable here: Keras also marks the result of `x * 2.0` as sparse.
        if producer is None and (symbol.sparse or symbol.ragged):
            raise UnsupportedModel(f"input '{name}' is sparse or ragged: hyparflow handles dense tensors only")
        self.tensors.append((name, shape, dtype, producer))
        return len(self.tensors) - 1

    def mask_of(self, symbol: Any, tensor: int, producer: int) -> int | None:
        """Add the mask that Keras attaches to a tensor, if any, as a tensor of its own."""
        mask = getattr(symbol, "_keras_mask", None)
        if mask is None:
            return None
        self.masks[tensor] = self.tensor(mask, f"{self.tensors[tensor][0]}.mask", producer)
        return self.masks[tensor]

    def take_masks_of_a_run(self, symbols: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Replace the masks of symbolic tensors by those that calls find and return when Keras runs the model.

        ``MultiHeadAttention`` removes the masks of its inputs in place, and a layer can return a value that an
        ``Embedding`` inside it has masked. Symbolic tensors show neither.

        Raises:
            UnsupportedModel: Keras masks different tensors in training and evaluation, or an output loses its mask.
        """
        from keras import KerasTensor

        layers = (layer for call in self.calls for layer in layers_in(call.operation))
        if not self.masks and not any(_makes_masks(layer) for layer in layers):
            return
        run = self.masks_of_a_run(symbols, inputs, outputs, training=False)
        trained = self.masks_of_a_run(symbols, inputs, outputs, training=True)
        for node, one, other in zip(self.nodes, run, trained, strict=True):
            if one.keys() != other.keys():
                raise UnsupportedModel(
                    f"'{node.name}' has other masks in training than in evaluation: Keras removes the masks of what "
                    "MultiHeadAttention reads, and layers such as Dropout return their input itself in evaluation; "
                    "insert LayerNormalization, or another layer that computes, before the attention"
                )
        for index, (node, call, masks) in enumerate(zip(self.nodes, self.calls, run, strict=True)):
            plain = node.outputs[: len(call.output_masks)]
            for tensor in plain:
                if tensor in masks and tensor not in self.masks:
                    shape, name = masks[tensor].shape, f"{self.tensors[tensor][0]}.mask"
                    self.masks[tensor] = self.tensor(KerasTensor(shape, "bool", name=name), name, index)
            input_masks = {tensor: self.masks[tensor] for tensor in call.inputs.values() if tensor in masks}
            output_masks = tuple(self.masks[tensor] if tensor in masks else None for tensor in plain)
            self.nodes[index] = replace(
                node,
                inputs=tuple(dict.fromkeys([*call.inputs.values(), *input_masks.values()])),
                outputs=(*plain, *(mask for mask in output_masks if mask is not None)),
            )
            self.calls[index] = replace(call, input_masks=input_masks, output_masks=output_masks)

    def masks_of_a_run(
        self, symbols: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int], *, training: bool
    ) -> list[dict[int, Any]]:
        """Return for each call the masks of its inputs before and its outputs after it, by tensor."""
        from keras import KerasTensor, StatelessScope, tree
        from keras.src.backend import compute_output_spec, get_keras_mask

        known = {id(v): v for call in self.calls for v in getattr(call.operation, "variables", ())}
        found: list[dict[int, Any]] = []

        def run(given: list[Any], weights: list[Any]) -> None:
            values = dict(zip(inputs, given, strict=True))
            with StatelessScope(state_mapping=list(zip(known.values(), weights, strict=True))):
                for node, call in zip(self.nodes, self.calls, strict=True):
                    masks = {tensor: get_keras_mask(values[tensor]) for tensor in call.inputs.values()}
                    made = call.run({symbol: values[tensor] for symbol, tensor in call.inputs.items()}, training)
                    plain = dict(zip(node.outputs, tree.flatten(made), strict=False))
                    values.update(plain)
                    masks |= {tensor: get_keras_mask(value) for tensor, value in plain.items()}
                    found.append({tensor: mask for tensor, mask in masks.items() if mask is not None})
            for tensor in outputs:
                producer = self.tensors[tensor][3]
                if producer is not None and tensor in found[producer] and get_keras_mask(values[tensor]) is None:
                    raise UnsupportedModel(
                        f"output '{self.tensors[tensor][0]}' loses its mask because MultiHeadAttention reads it: "
                        "insert LayerNormalization, or another layer that computes, before the attention"
                    )

        # Names of tensors are numbered in the process, and must be the same on all ranks.
        compute_output_spec(run, list(symbols), [KerasTensor(v.shape, v.dtype, name=v.name) for v in known.values()])
        return found

    def layer(self, operation: Any) -> _Layer:
        """Return the properties that all calls of an operation share."""
        if id(operation) not in self.layers:
            variables = getattr(operation, "variables", [])
            trainable = getattr(operation, "trainable_variables", [])
            first = {id(variable) for variable in trainable}
            ordered = [*trainable, *(variable for variable in variables if id(variable) not in first)]
            self.layers[id(operation)] = _Layer(
                _configuration(operation),
                tuple(self.variable_names[id(variable)] for variable in ordered),
                sum(_elements(variable.shape) for variable in trainable),
            )
        return self.layers[id(operation)]

    def finished_tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors with their consumers."""
        consumers: list[list[int]] = [[] for _ in self.tensors]
        for node in self.nodes:
            for tensor in node.inputs:
                consumers[tensor].append(node.index)
        return tuple(Tensor(index, *known, tuple(consumers[index])) for index, known in enumerate(self.tensors))

    def bound_together(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups of nodes that call the same BatchNormalization."""
        nodes: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            for layer in batch_norms(call.operation):
                nodes.setdefault(id(layer), []).append(index)
        return tuple(sorted({tuple(found) for found in nodes.values() if len(found) > 1}))

    def fingerprint(self, outputs: tuple[int, ...]) -> str:
        """Return a digest of names, signatures and connections."""
        digest = hashlib.sha256()
        for node in self.nodes:
            digest.update(repr((node.name, node.signature, node.inputs, node.outputs, node.variables)).encode())
        digest.update(repr((self.tensors, outputs)).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Layer:
    configuration: str
    variables: tuple[str, ...]
    parameters: int


def _elements(shape: Any) -> int:
    count = 1
    for extent in shape:
        count *= int(extent)
    return count


def _configuration(operation: Any) -> str:
    """Return the class of an operation and its configuration without entries that do not affect its cost."""
    try:
        configuration = operation.get_config()
    except NotImplementedError:  # an operation or layer that cannot be serialized
        return f"{type(operation).__name__}#{operation.name}"
    configuration = {key: value for key, value in configuration.items() if key not in _COSTLESS}
    return f"{type(operation).__name__}{json.dumps(configuration, sort_keys=True, default=_stable)}"


def _stable(value: Any) -> str:
    """Describe a value that JSON does not support, without addresses, which differ between processes."""
    return getattr(value, "__name__", type(value).__name__)


def _plain_arguments(arguments: Any) -> str:
    """Return the arguments of a call that are not tensors."""
    from keras import KerasTensor, tree

    plain = [value for value in _leaves(tree, arguments) if not isinstance(value, KerasTensor)]
    return ",".join(repr(v) if isinstance(v, (bool, int, float, str, type(None))) else _stable(v) for v in plain)


def _leaves(tree: Any, arguments: Any) -> Iterator[Any]:
    flatten: Callable[[Any], list[Any]] = tree.flatten
    yield from flatten((arguments.args, arguments.kwargs))

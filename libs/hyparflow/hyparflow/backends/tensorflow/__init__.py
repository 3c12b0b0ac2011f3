"""The backend for Keras on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hyparflow.backends import ProgramOptions, StageProgram, StageShape
from hyparflow.graph.types import Graph

if TYPE_CHECKING:
    from hyparflow.backends.tensorflow.stage_graph import StageParts


def build(
    model: Any, graph: Graph, stages: Sequence[StageShape], index: int, options: ProgramOptions | None = None
) -> StageProgram:
    """Build the program of stage ``index``.

    Args:
        model: A compiled ``keras.Model``. Its variables may be deferred (``hyparflow.deferred``); those of the stage
            are initialised here.
        graph: ``graph_of(model)``, with the shapes of this rank's part of the images.
        stages: All stages, to find the layers that several of them share.
        index: The stage to build.
        options: How to build it (default: ``ProgramOptions()``).

    Raises:
        UnsupportedModel: A layer cannot be cut.
    """
    from hyparflow.backends.tensorflow.program import TensorFlowStage
    from hyparflow.backends.tensorflow.statistics import check_together
    from hyparflow.graph.calls import calls_of, variables_of
    from hyparflow.graph.initialise import initialise

    calls = calls_of(model)
    if calls.graph.fingerprint != graph.fingerprint:
        raise ValueError(f"the graph does not belong to model '{model.name}'")
    shapes = tuple(tensor.shape for tensor in calls.graph.tensors)
    calls = replace(calls, graph=graph)
    others = [node for place, stage in enumerate(stages) if place != index for node in stage.nodes]
    check_together(calls, stages[index].nodes, others)
    mine = {name for node in stages[index].nodes for name in graph.nodes[node].variables}
    variables = {name: variable for name, variable in variables_of(model).items() if name in mine}
    initialise(variables.values())
    options = options or ProgramOptions()
    parts = replace(_parts(model, calls, stages[index], variables, options), shapes=shapes)
    return TensorFlowStage(parts, variables, device_messages=options.device_messages)


def _parts(model: Any, calls: Any, stage: StageShape, variables: dict[str, Any], options: ProgramOptions) -> StageParts:
    from hyparflow.backends.tensorflow.losses import compiled_losses
    from hyparflow.backends.tensorflow.memory import accumulators
    from hyparflow.backends.tensorflow.seeds import Seeds
    from hyparflow.backends.tensorflow.stage_graph import StageParts
    from hyparflow.backends.tensorflow.statistics import moving_of
    from hyparflow.graph.calls import layers_in

    trains = {id(variable) for variable in model.trainable_variables}
    names = {id(variable): name for name, variable in variables.items()}
    seeds = Seeds(calls, stage.nodes)
    moving = moving_of(calls, stage.nodes, names, options.batch_norm)
    elsewhere = {id(v) for v in seeds.states} | {id(v) for group in moving for v in group.variables}
    trainable = {name: v for name, v in variables.items() if id(v) in trains}
    others = {name: v for name, v in variables.items() if id(v) not in trains | elsewhere}
    # Keras lists a frozen weight among the trainable ones of its layer. Unlike other variables, it is never assigned.
    layers = [layer for node in stage.nodes for layer in layers_in(calls.calls[node].operation)]
    frozen = {id(v) for layer in layers for v in layer._trainable_variables}
    first_node: dict[str, int] = {}
    for node in calls.graph.nodes:
        for name in node.variables:
            first_node.setdefault(name, node.index)
    return StageParts(
        calls=calls,
        stage=stage,
        trainable=trainable,
        weights={name: v for name, v in others.items() if id(v) in frozen},
        states={name: v for name, v in others.items() if id(v) not in frozen},
        regularized=[n for n, v in trainable.items() if v.regularizer is not None and first_node[n] in stage.nodes],
        moving=moving,
        seeds=seeds,
        losses=compiled_losses(model),
        metrics=getattr(model, "_compile_metrics", None) is not None,
        accumulators=accumulators(trainable, options.bucket_bytes),
        spatial=options.spatial,
        shapes=(),
    )

"""Plans for training: `plan` creates one from a model and a request, `refine` improves it with measured times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.planning import measure
from hyparflow.planning.costs import Costs, Memory, estimated
from hyparflow.planning.measure import Passes, elsewhere, one_by_one
from hyparflow.planning.network import Network
from hyparflow.planning.partition import Bounds, cut
from hyparflow.planning.plan import Plan
from hyparflow.planning.prediction import predict, with_costs
from hyparflow.planning.request import Assignment, Recompute, Request, counts_of, wrong_for, wrong_numbers
from hyparflow.planning.stages import Stage, beginning_at, crossings, mapped, stages_of
from hyparflow.schedules import Schedule, check, in_flight, owner, pipelines, schedule

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


def plan(
    model_or_graph: Any,
    *,
    partitions: int,
    replicas: int = 1,
    batch_size: int,
    micro_batches: int | Literal["auto"] = "auto",
    schedule: str = "1f1b",
    chunks: int = 1,
    recompute: Recompute = "auto",
    assignment: Assignment = "auto",
    costs: Literal["auto", "measured", "estimated"] | Costs = "auto",
    memory_limit: int | None = None,
    network: Network | None = None,
    refinements: int = 0,
    spatial: int = 1,
    timed: Callable[[Any, Graph, Plan], Sequence[Passes]] | None = None,
) -> Plan:
    """Plan a training: the stages of each partition, their schedule, and the predicted times.

    Args:
        model_or_graph: A Keras model, or its `Graph` (whose costs can only be estimated).
        partitions: Ranks that share one model.
        replicas: Copies of the model that share a batch (default: 1).
        batch_size: Samples of a step over all replicas.
        micro_batches: Micro-batches of a replica's step; ``auto`` selects the number with the shortest predicted step.
        schedule: ``gpipe``, ``1f1b`` (default), ``interleaved`` or ``gems``.
        chunks: Stages per partition, more than 1 with ``interleaved`` only.
        recompute: Drop activations and compute them again before the backward pass: on all stages, on those with True,
            or (``auto``) on those that would exceed the memory limit.
        assignment: ``auto`` for the minimax cut, names of the layers at which a stage begins, or a mapping of nodes
            (names or indices) or layers to stages.
        costs: ``measured`` runs each different node once in TensorFlow on the CPU; ``estimated`` counts their work;
            ``auto`` measures on the CPU, and refines estimates on a GPU.
        memory_limit: Bytes of a rank, for weights, gradients, optimizer and activations.
        network: The network between ranks (default: shared memory).
        refinements: Number of times that the stages are compiled and timed and the model is cut again (see `refine`).
            The prediction is then based on the times of the last stages. This takes as long as compiling the model.
        spatial: Parts into which the images of a replica are divided by rows, each on a rank of its own (default: 1).
            It requires a model, whose costs can only be estimated.
        timed: A function to time stages (model, graph, plan -> argument of `refine`); by default, they are timed one
            after the other in this process. `hyparflow.training.sessions.plan_together` makes all ranks time their own
            stages at once.

    Raises:
        PlanError: The request is invalid; all problems are reported.
        UnsupportedModel: The model cannot be cut.
    """
    memory = Memory(copies=_copies(model_or_graph), limit=memory_limit)
    request = Request(
        partitions, replicas, batch_size, micro_batches, schedule, chunks, recompute, assignment, memory,
        network or Network(), spatial,
    )  # fmt: skip
    found = wrong_numbers(request)
    if refinements and hasattr(model_or_graph, "fingerprint"):
        found.append("stages can only be timed with a model, not with its graph: remove refinements")
    if spatial > 1 and (costs == "measured" or refinements):
        found.append(
            "layers and stages cannot be timed on a part of the images: use costs='estimated' and no refinements"
        )
    if found:
        raise PlanError(*found)
    graph = _graph(model_or_graph) if spatial == 1 else _divided(model_or_graph, spatial)
    if found := wrong_for(graph, request):
        raise PlanError(*found)
    given = _given(graph, request)
    if costs == "auto" and spatial > 1:
        costs = "estimated"
    elif costs == "auto":
        costs, refinements = _choose_costs(model_or_graph is graph, refinements)
    if isinstance(costs, str):
        costs = _costs(costs, model_or_graph, graph, request)
    planned = _best(graph, request, costs, given)
    for remaining in range(refinements, -1, -1) if refinements else ():
        seen = (timed or one_by_one)(model_or_graph, graph, planned)
        planned = refine(planned, graph, seen, costs=costs, keep=given is not None or remaining == 0)
    return planned


def refine(
    planned: Plan,
    model_or_graph: Any,
    measured: Sequence[Passes],
    *,
    costs: Costs | None = None,
    keep: bool = False,
) -> Plan:
    """Improve a plan with the measured times of its stages.

    The cost of every node is multiplied by measured / planned of its stage, and the model is cut again.

    Args:
        planned: The plan.
        model_or_graph: Its model or graph.
        measured: (forward seconds, backward seconds) of each stage and micro-batch.
        costs: The costs of the first plan (default: estimated).
        keep: Keep the stages and change the prediction only.
    """
    graph = _graph(model_or_graph)
    if len(measured) != len(planned.stages):
        raise PlanError(f"the plan has {len(planned.stages)} stages, but {len(measured)} were measured")
    base = costs or estimated(graph)
    forward, backward = np.ones(len(graph.nodes)), np.ones(len(graph.nodes))
    for stage, (ahead, back) in zip(planned.stages, measured, strict=True):
        nodes = list(stage.nodes)
        first = float(base.forward(planned.micro_batch_size)[nodes].sum())
        second = float(base.backward(planned.micro_batch_size)[nodes].sum())
        if not stage.sends:  # both passes in one program
            forward[nodes] = backward[nodes] = (ahead + back) / (first + second)
        else:
            forward[nodes] = ahead / first
            backward[nodes] = max(back - ahead * stage.recompute, 0.0) / second
    scaled = replace(base.scaled(forward, backward, "refined"), action_seconds=0.0)  # included in the measurement
    request = Request(
        planned.partitions, planned.replicas, planned.batch_size, planned.micro_batches, planned.schedule,
        planned.chunks, [stage.recompute for stage in planned.stages], "auto", planned.memory, planned.network,
    )  # fmt: skip
    return _planned(graph, request, planned.micro_batches, scaled, _assignment(planned) if keep else None)


def _best(graph: Graph, request: Request, costs: Costs, given: tuple[int, ...] | None) -> Plan:
    """Return the plan with the number of micro-batches that has the shortest step.

    The numbers are compared for the same cut, the first one that fits into memory, starting with the middle number. The
    model is cut again for the best one.
    """
    counts = counts_of(request)
    if len(counts) == 1:
        return _planned(graph, request, counts[0], costs, given)
    shared = given
    plans: list[Plan] = []
    refused: list[PlanError] = []
    middle = counts[len(counts) // 2]
    for count in [middle, *(count for count in counts if count != middle)]:
        try:
            plans.append(_planned(graph, request, count, costs, shared))
            shared = shared or _assignment(plans[-1])
        except PlanError as error:
            refused.append(error)
    if not plans:
        raise refused[-1]
    best = min(plans, key=lambda one: one.prediction.step_seconds)
    if given is not None:
        return best
    own = _planned(graph, request, best.micro_batches, costs, None)
    return min(own, best, key=lambda one: one.prediction.step_seconds)


def _assignment(planned: Plan) -> tuple[int, ...]:
    """Return the stage of each node in a plan."""
    home = {node: stage.index for stage in planned.stages for node in stage.nodes}
    return tuple(home[node] for node in range(len(home)))


def _planned(graph: Graph, request: Request, micro_batches: int, costs: Costs, given: tuple[int, ...] | None) -> Plan:
    """Return the plan for one number of micro-batches; ``given`` is the user's assignment, None for the minimax cut."""
    samples = request.batch_size // request.replicas // micro_batches
    actions = schedule(request.schedule, request.partitions, micro_batches, request.chunks)
    assignment = given
    if assignment is None:
        seconds = costs.forward(samples), costs.backward(samples)
        assignment = cut(graph, *seconds, samples=samples, bounds=_bounds(request, actions), network=request.network)
    bare = stages_of(graph, assignment)
    check(actions, crossings(bare))
    tensors = {
        tensor: (graph.tensors[tensor].name, graph.tensors[tensor].bytes_per_sample)
        for stage in bare
        for tensor in sorted(stage.sends)
    }

    def predicted(recompute: Sequence[bool]) -> Plan:
        chosen = zip(bare, recompute, strict=True)
        stages = tuple(with_costs(graph, replace(stage, recompute=again), costs, samples) for stage, again in chosen)
        prediction = predict(
            actions,
            stages,
            tensors=tensors,
            samples=samples,
            replicas=request.replicas * request.spatial,
            memory=request.memory,
            network=request.network,
        )
        return Plan(
            graph.name, graph.fingerprint, request.partitions, request.replicas, request.chunks, request.schedule,
            micro_batches, samples, stages, prediction, tensors, request.network, request.memory, costs.source,
            request.spatial,
        )  # fmt: skip

    return _fitting(predicted, bare, request)


def _fitting(predicted: Any, bare: Sequence[Stage], request: Request) -> Plan:
    """Return the plan with recomputation as requested, or as the memory limit requires."""
    limit = request.memory.limit
    if request.recompute == "auto":
        made: Plan = predicted([False] * len(bare))
        if limit is not None and max(made.prediction.peak_bytes) > limit:
            over = {partition for partition, peak in enumerate(made.prediction.peak_bytes) if peak > limit}
            homes = [{made.owner(stage.index, pipeline) for pipeline in range(made.pipelines)} for stage in bare]
            made = predicted([bool(stage.sends and homes[stage.index] & over) for stage in bare])
    else:
        again = request.recompute
        made = predicted([again] * len(bare) if isinstance(again, bool) else list(again))
    if limit is not None and max(made.prediction.peak_bytes) > limit:
        worst = max(made.prediction.peak_bytes)
        raise PlanError(
            f"a rank would need {worst:,} bytes, but the limit is {limit:,}: use more partitions, smaller "
            f"micro-batches, recomputation, or a schedule with fewer micro-batches in flight"
        )
    return made


def _bounds(request: Request, actions: Schedule) -> Bounds:
    """Return the constraints of the cut; with several chunks, each stage gets its share of the partition's memory."""
    held = [
        max(
            in_flight(
                tuple(
                    action
                    for action in actions[owner(stage, pipeline, request.partitions)]
                    if (action.stage, action.pipeline) == (stage, pipeline)
                )
            )
            for pipeline in range(pipelines(request.schedule))
        )
        for stage in range(request.stages)
    ]
    again: Sequence[bool | None]
    if request.recompute == "auto":
        again = [None] * request.stages
    else:
        again = [request.recompute] * request.stages if isinstance(request.recompute, bool) else request.recompute
    limit = request.memory.limit
    copies = request.memory.copies * pipelines(request.schedule)
    return Bounds(tuple(held), tuple(again), None if limit is None else limit / request.chunks, copies)


def _given(graph: Graph, request: Request) -> tuple[int, ...] | None:
    """Return the user's own assignment, or None."""
    if isinstance(request.assignment, str):
        if request.assignment != "auto":
            raise PlanError(f"the assignment must be auto, a list of layers or a mapping, not {request.assignment!r}")
        return None
    if isinstance(request.assignment, Mapping):
        return mapped(graph, request.assignment, request.stages)
    return beginning_at(graph, request.assignment, request.stages)


def _graph(model_or_graph: Any) -> Graph:
    if hasattr(model_or_graph, "fingerprint"):
        return model_or_graph
    from hyparflow.graph.calls import graph_of

    return graph_of(model_or_graph)


def _divided(model: Any, spatial: int) -> Graph:
    """Return the graph of the largest part of a model's images."""
    if hasattr(model, "fingerprint"):
        raise PlanError("images can be divided with a model only, not with its graph")
    from hyparflow.graph.calls import calls_of
    from hyparflow.graph.spatial import divide

    calls = calls_of(model)
    division = divide(calls, spatial)
    if not division.nodes:
        raise PlanError(
            f"{model.name} has no images that divide into {spatial} parts: its first layers must be convolutions, "
            "poolings or normalisations of Keras with channels last and Keras' activations, on inputs with a row for "
            "each part"
        )
    return division.local(calls.graph, spatial - 1)  # rounding makes the last part the largest


def _copies(model: Any) -> float:
    """Return the number of copies of the weights: weights, gradients, and slots of the model's optimizer."""
    return Memory().copies if getattr(model, "optimizer", None) is None else 2.0 + _slots(model.optimizer)


def _slots(optimizer: Any) -> float:
    """Return the number of slots per weight of an optimizer, counted on one like it for a small variable."""
    import keras

    like = type(optimizer).from_config(optimizer.get_config())
    variable = keras.Variable(np.zeros((16, 16), np.float32), name="hyparflow_sample")
    like.build([variable])
    sizes = [math.prod(each.shape) for each in like.variables if len(each.shape)]  # counters and rates are scalars
    return sum(sizes) / math.prod(variable.shape)


def _choose_costs(of_graph: bool, refinements: int) -> tuple[Literal["measured", "estimated"], int]:
    """Return the source of costs and the number of refinements: nodes are not measured on a GPU, but refined once."""
    if of_graph:
        return "estimated", refinements
    return ("estimated", max(1, refinements)) if elsewhere() else ("measured", refinements)


def _costs(name: str, model_or_graph: Any, graph: Graph, request: Request) -> Costs:
    """Return costs by the name of their source."""
    if name == "estimated":
        return estimated(graph)
    if name != "measured":
        raise PlanError(f"costs must be auto, measured, estimated or a Costs object, not {name!r}")
    if model_or_graph is graph:
        raise PlanError("costs can be measured with a model only, not with its graph: use costs='estimated'")
    share = request.batch_size // request.replicas
    counts = counts_of(request)
    return measure.measured(model_or_graph, graph, (share // counts[-1], share // counts[0]))

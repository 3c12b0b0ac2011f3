"""`plan`: from a model and a request to a plan; `refine`: the same again with what was measured."""

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
    timed: Callable[[Any, Graph, Plan], Sequence[Passes]] | None = None,
) -> Plan:
    """The plan of a training: who computes what, when, and what that is expected to take.

    :param model_or_graph: a Keras model, or its `Graph` (with which costs can be estimated only).
    :param batch_size: samples of a step over all replicas.
    :param micro_batches: of one replica's step; ``auto`` takes the number with the shortest predicted step.
    :param recompute: drop activations and compute them again before the backward pass: on all stages, on those with
        True, or ``auto``: on those that would not fit into the memory limit.
    :param assignment: ``auto``: the minimax cut; names of the layers at which a stage begins; or a mapping node (name
        or index) or layer -> stage.
    :param costs: ``measured`` runs each different node once through TensorFlow on the processor; ``estimated`` counts
        their work; ``auto`` measures where TensorFlow computes on the processor, and on a GPU refines estimates.
    :param memory_limit: bytes of a rank, for weights, gradients, optimizer and activations.
    :param refinements: so many times the plan's stages are compiled and timed and the model is cut again (`refine`);
        the prediction then rests on the times of the last stages. It takes as long as compiling the model does.
    :param timed: how stages are timed (model, graph, plan -> what `refine` takes); if None, one after the other in this
        process. `hyparflow.training.sessions.plan_together` has all ranks time their own, at once.
    :raises PlanError: with everything that is wrong with the request.
    :raises UnsupportedModel: if the model cannot be cut.
    """
    memory = Memory(copies=_copies(model_or_graph), limit=memory_limit)
    request = Request(
        partitions, replicas, batch_size, micro_batches, schedule, chunks, recompute, assignment, memory,
        network or Network(),
    )  # fmt: skip
    found = wrong_numbers(request)
    if refinements and hasattr(model_or_graph, "fingerprint"):
        found.append("stages can be timed with a model only, not with its graph: leave refinements out")
    if found:
        raise PlanError(*found)
    graph = _graph(model_or_graph)
    if found := wrong_for(graph, request):
        raise PlanError(*found)
    given = _given(graph, request)
    if costs == "auto":
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
    """The plan once more, from what its stages were seen to take.

    Every node's cost is multiplied by measured / planned of the stage that it was on, and the model is cut again.

    :param measured: (forward seconds, backward seconds) of each stage and micro-batch, as the ranks timed them.
    :param costs: those of the first plan; estimated ones serve where they are gone.
    :param keep: the stages stay as they are, and only the prediction changes.
    """
    graph = _graph(model_or_graph)
    if len(measured) != len(planned.stages):
        raise PlanError(f"the plan has {len(planned.stages)} stages, and {len(measured)} were measured")
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
    scaled = replace(base.scaled(forward, backward, "refined"), action_seconds=0.0)  # it is in what was measured
    request = Request(
        planned.partitions, planned.replicas, planned.batch_size, planned.micro_batches, planned.schedule,
        planned.chunks, [stage.recompute for stage in planned.stages], "auto", planned.memory, planned.network,
    )  # fmt: skip
    return _planned(graph, request, planned.micro_batches, scaled, _assignment(planned) if keep else None)


def _best(graph: Graph, request: Request, costs: Costs, given: tuple[int, ...] | None) -> Plan:
    """The plan with the number of micro-batches whose step is the shortest.

    The numbers are compared over one cut, that of the first that fits into the memory, beginning with the middle one;
    the model is cut once more for the winner.
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
    """The stage of each node in a plan."""
    home = {node: stage.index for stage in planned.stages for node in stage.nodes}
    return tuple(home[node] for node in range(len(home)))


def _planned(graph: Graph, request: Request, micro_batches: int, costs: Costs, given: tuple[int, ...] | None) -> Plan:
    """The plan for one number of micro-batches.

    :param given: the user's assignment; None for the minimax cut.
    """
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
            replicas=request.replicas,
            memory=request.memory,
            network=request.network,
        )
        return Plan(
            graph.name, graph.fingerprint, request.partitions, request.replicas, request.chunks, request.schedule,
            micro_batches, samples, stages, prediction, tensors, request.network, request.memory, costs.source,
        )  # fmt: skip

    return _fitting(predicted, bare, request)


def _fitting(predicted: Any, bare: Sequence[Stage], request: Request) -> Plan:
    """The plan with the recomputation that was asked for, or that the memory limit asks for."""
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
            f"a rank would hold {worst:,} bytes, and the limit is {limit:,}: take more partitions, smaller "
            f"micro-batches, recomputation, or a schedule that holds less"
        )
    return made


def _bounds(request: Request, actions: Schedule) -> Bounds:
    """What the cut must keep to: under several chunks each stage has its share of the partition's memory."""
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
    """The user's own assignment, or None."""
    if isinstance(request.assignment, str):
        if request.assignment != "auto":
            raise PlanError(f"the assignment is auto, a list of layers or a mapping, not {request.assignment!r}")
        return None
    if isinstance(request.assignment, Mapping):
        return mapped(graph, request.assignment, request.stages)
    return beginning_at(graph, request.assignment, request.stages)


def _graph(model_or_graph: Any) -> Graph:
    if hasattr(model_or_graph, "fingerprint"):
        return model_or_graph
    from hyparflow.graph.calls import graph_of

    return graph_of(model_or_graph)


def _copies(model: Any) -> float:
    """The weights, their gradients, and the slots of the optimizer: those of the model where it is compiled."""
    return Memory().copies if getattr(model, "optimizer", None) is None else 2.0 + _slots(model.optimizer)


def _slots(optimizer: Any) -> float:
    """How many more values than weights an optimizer keeps: one like it is built for a small variable, and counted."""
    import keras

    like = type(optimizer).from_config(optimizer.get_config())
    variable = keras.Variable(np.zeros((16, 16), np.float32), name="hyparflow_sample")
    like.build([variable])
    sizes = [math.prod(each.shape) for each in like.variables if len(each.shape)]  # counters and rates are scalars
    return sum(sizes) / math.prod(variable.shape)


def _choose_costs(of_graph: bool, refinements: int) -> tuple[Literal["measured", "estimated"], int]:
    """Return where costs come from, and how often they are refined: on a GPU, whose nodes are not measured, once."""
    if of_graph:
        return "estimated", refinements
    return ("estimated", max(1, refinements)) if elsewhere() else ("measured", refinements)


def _costs(name: str, model_or_graph: Any, graph: Graph, request: Request) -> Costs:
    """Costs by the name of their source."""
    if name == "estimated":
        return estimated(graph)
    if name != "measured":
        raise PlanError(f"costs are auto, measured, estimated or a Costs object, not {name!r}")
    if model_or_graph is graph:
        raise PlanError("costs can be measured with a model only, not with its graph: say costs='estimated'")
    share = request.batch_size // request.replicas
    counts = counts_of(request)
    return measure.measured(model_or_graph, graph, (share // counts[-1], share // counts[0]))

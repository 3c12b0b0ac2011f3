"""Stages: a graph's nodes shared out, and the tensors that cross between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyparflow.errors import PlanError

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


@dataclass(frozen=True)
class Stage:
    """A set of nodes that one rank computes as a unit. Times and `activation_bytes` are those of one micro-batch."""

    index: int
    nodes: tuple[int, ...]
    receives: tuple[int, ...]  # tensors made on other stages, or inputs of the model
    sends: Mapping[int, tuple[int, ...]]  # tensor -> the stages that need it; straight, nobody passes it on
    outputs: tuple[int, ...]  # the model's outputs that are made here
    recompute: bool = False
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0  # with the forward pass again, where the stage recomputes
    parameter_bytes: int = 0
    activation_bytes: int = 0  # held from the forward pass to the backward pass
    working_bytes: int = 0  # needed for the moment of a pass besides
    first: str = ""  # the names of the first and the last node
    last: str = ""


def stages_of(graph: Graph, assignment: Sequence[int]) -> tuple[Stage, ...]:
    """The stages of an assignment, without costs.

    :param assignment: the stage of each node, by the node's index. Any assignment will do here: whether it runs is
        for `hyparflow.schedules.check` to say.
    :raises PlanError: if the nodes and the assignment do not match, or a stage is empty.
    """
    if len(assignment) != len(graph.nodes):
        raise PlanError(f"{graph.name} has {len(graph.nodes)} nodes, and the assignment names {len(assignment)}")
    members: dict[int, list[int]] = defaultdict(list)
    for node, stage in enumerate(assignment):
        members[stage].append(node)
    count = max(members) + 1
    if empty := [stage for stage in range(count) if stage not in members] + [stage for stage in members if stage < 0]:
        raise PlanError(*(f"stage {stage} has no node; stages are numbered 0..S-1 without gaps" for stage in empty))
    receives: dict[int, set[int]] = defaultdict(set)
    sends: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    outputs: dict[int, list[int]] = defaultdict(list)
    for tensor in graph.tensors:
        home = None if tensor.producer is None else assignment[tensor.producer]
        consumers = sorted({assignment[node] for node in tensor.consumers} - {home})
        for stage in consumers:
            receives[stage].add(tensor.index)
        if home is not None and consumers:
            sends[home][tensor.index] = tuple(consumers)
    for output in dict.fromkeys(graph.outputs):
        producer = graph.tensors[output].producer
        home = 0 if producer is None else assignment[producer]
        outputs[home].append(output)
        if producer is None:  # an input that the model returns as it is
            receives[home].add(output)
    return tuple(
        Stage(
            index=stage,
            nodes=tuple(members[stage]),
            receives=tuple(sorted(receives[stage])),
            sends=dict(sends[stage]),
            outputs=tuple(outputs[stage]),
            parameter_bytes=_parameter_bytes(graph, members[stage]),
            first=graph.nodes[members[stage][0]].name,
            last=graph.nodes[members[stage][-1]].name,
        )
        for stage in range(count)
    )


def crossings(stages: Sequence[Stage]) -> tuple[tuple[int, int], ...]:
    """The pairs (producing stage, consuming stage) between which at least one tensor goes."""
    return tuple(sorted({(one.index, other) for one in stages for others in one.sends.values() for other in others}))


def _parameter_bytes(graph: Graph, nodes: Sequence[int], bytes_each: int = 4) -> int:
    """What the variables of some nodes take; a layer that is called several times counts once."""
    layers = {graph.nodes[node].layer: graph.nodes[node].parameters for node in nodes}
    return sum(layers.values()) * bytes_each

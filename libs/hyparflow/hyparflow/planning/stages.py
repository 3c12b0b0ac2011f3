"""Stages: the nodes of a graph divided among them, and the tensors between them.

The user can name the layers at which stages begin (the expert mode of HyPar-Flow), or map nodes to stages.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyparflow.errors import PlanError

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


@dataclass(frozen=True)
class Stage:
    """A set of nodes that one rank computes as a unit. Times and `activation_bytes` are per micro-batch."""

    index: int
    nodes: tuple[int, ...]
    receives: tuple[int, ...]  # tensors from other stages, or inputs of the model
    sends: Mapping[int, tuple[int, ...]]  # tensor -> the stages that receive it directly
    outputs: tuple[int, ...]  # outputs of the model that are computed here
    recompute: bool = False
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0  # including the recomputed forward pass
    parameter_bytes: int = 0
    activation_bytes: int = 0  # held from the forward pass to the backward pass
    working_bytes: int = 0  # needed temporarily during a pass
    first: str = ""  # names of the first and the last node
    last: str = ""


def stages_of(graph: Graph, assignment: Sequence[int]) -> tuple[Stage, ...]:
    """Return the stages of an assignment, without costs.

    Any assignment is accepted here; `hyparflow.schedules.check` checks whether it can run.

    Args:
        graph: The model.
        assignment: The stage of each node, by the node's index.

    Raises:
        PlanError: Nodes and assignment do not match, or a stage is empty.
    """
    if len(assignment) != len(graph.nodes):
        raise PlanError(f"{graph.name} has {len(graph.nodes)} nodes, but the assignment has {len(assignment)}")
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
        if producer is None:  # an input that the model returns unchanged
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
    """Return the pairs (producing stage, consuming stage) with at least one tensor between them."""
    return tuple(sorted({(one.index, other) for one in stages for others in one.sends.values() for other in others}))


def _parameter_bytes(graph: Graph, nodes: Sequence[int], bytes_each: int = 4) -> int:
    """Return the bytes of the variables of some nodes; a layer with several calls counts once."""
    layers = {graph.nodes[node].layer: graph.nodes[node].parameters for node in nodes}
    return sum(layers.values()) * bytes_each


def beginning_at(graph: Graph, names: Sequence[str], stages: int) -> tuple[int, ...]:
    """Divide the nodes into runs, each starting at the first call of a named layer.

    Args:
        graph: The model.
        names: Layers or nodes in order, one for each stage except the first (the model's first may be included).
        stages: Number of stages.

    Raises:
        PlanError: Names are unknown or out of order, or their number is wrong; all problems are reported.
    """
    known = _places(graph)
    found = [_unknown(name, known) for name in names if name not in known]
    places = [known[name][0] for name in names if name in known]
    if not found:
        found += [
            f"{later!r} comes before {earlier!r} in the model: stages must be in its order"
            for earlier, later, left, right in zip(names, names[1:], places, places[1:], strict=False)
            if right <= left
        ]
        if places[:1] == [0]:
            places = places[1:]
        if len(places) != stages - 1:
            found.append(f"{stages} stages need {stages - 1} layers at which a stage begins, not {len(places)}")
    if found:
        raise PlanError(*found)
    bounds = [0, *places, len(graph.nodes)]
    return tuple(stage for stage in range(stages) for _ in range(bounds[stage], bounds[stage + 1]))


def mapped(graph: Graph, mapping: Mapping[str | int, int], stages: int) -> tuple[int, ...]:
    """Assign nodes (names or indices) or layers to stages; other nodes follow the last of their inputs.

    Args:
        graph: The model.
        mapping: Node or layer -> stage.
        stages: Number of stages.

    Raises:
        PlanError: Names are unknown, or stages do not exist or are empty; all problems are reported.
    """
    known = _places(graph)
    given: dict[int, int] = {}
    found = []
    for name, stage in mapping.items():
        if isinstance(name, int):
            if 0 <= name < len(graph.nodes):
                given[name] = stage
            else:
                found.append(f"there is no node {name}; {graph.name} has 0..{len(graph.nodes) - 1}")
        elif name in known:
            given.update(dict.fromkeys(known[name], stage))
        else:
            found.append(_unknown(name, known))
        if not 0 <= stage < stages:
            found.append(f"{name!r} is given to stage {stage}; there are 0..{stages - 1}")
    if found:
        raise PlanError(*found)
    assignment: list[int] = []
    for node in graph.nodes:
        producers = [graph.tensors[tensor].producer for tensor in node.inputs]
        follows = max((assignment[producer] for producer in producers if producer is not None), default=0)
        assignment.append(given.get(node.index, follows))
    if empty := sorted(set(range(stages)) - set(assignment)):
        raise PlanError(*(f"no node is given to stage {stage}" for stage in empty))
    return tuple(assignment)


def _places(graph: Graph) -> dict[str, list[int]]:
    """Return name -> nodes: all calls of a layer, or one node."""
    places: dict[str, list[int]] = {}
    for node in graph.nodes:
        places.setdefault(node.layer, []).append(node.index)
    for node in graph.nodes:
        if node.name != node.layer:
            places.setdefault(node.name, [node.index])
    return places


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"there is no layer {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")

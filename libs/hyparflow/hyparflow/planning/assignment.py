"""The user's own stages: layers at which a stage begins (HyPar-Flow's expert mode), or any node -> stage mapping."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hyparflow.errors import PlanError

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph


def beginning_at(graph: Graph, names: Sequence[str], stages: int) -> tuple[int, ...]:
    """Stages that are runs of nodes, each beginning at the first call of a named layer.

    :param names: of layers or nodes, in order: one for each stage but the first (the model's first may be named too).
    :raises PlanError: with every name that is unknown or out of order, and if their number does not fit.
    """
    known = _places(graph)
    found = [_unknown(name, known) for name in names if name not in known]
    places = [known[name][0] for name in names if name in known]
    if not found:
        found += [
            f"{later!r} comes before {earlier!r} in the model: stages begin in its order"
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
    """Stages as a mapping says: of nodes (by name or index) or layers. The others go with the last of their inputs.

    :raises PlanError: with every unknown name, every stage that does not exist and every stage left empty.
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
    """Name -> the nodes that it means: all calls of a layer, or one node."""
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

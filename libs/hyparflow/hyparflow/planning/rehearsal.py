"""A plan's stages, timed in the order of the schedule, with all that is in flight then, but without messages."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hyparflow.planning.samples import micro_batch

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph
    from hyparflow.planning.plan import Plan

SECONDS = 1.0  # for about so long steps are rehearsed; one at least

Passes = tuple[float, float]  # forward seconds, backward seconds


class Rehearsal:
    """One partition's stages of a plan, compiled; `seconds` runs steps of made-up micro-batches."""

    def __init__(self, model: Any, graph: Graph, plan: Plan, partition: int) -> None:
        from hyparflow.backends import Place
        from hyparflow.backends.tensorflow import build

        self._actions = plan.actions[partition]
        stages = sorted({action.stage for action in self._actions})
        self._programs = {index: build(model, graph, plan.stages, index) for index in stages}
        self._given = {index: micro_batch(model, graph, plan.stages[index], plan.micro_batch_size) for index in stages}
        self._places = [Place(0, 0, each, plan.replicas, plan.micro_batches) for each in range(plan.micro_batches)]
        for index, program in self._programs.items():
            program.start_step()
            program.prepare(self._places[0], self._given[index].inputs, self._given[index].targets)

    def seconds(self) -> dict[int, Passes]:
        """Stage -> the median of its passes' wall-clock times."""
        seen: dict[tuple[int, str], list[float]] = {}
        begin = time.perf_counter()
        while not seen or time.perf_counter() - begin < SECONDS:
            for program in self._programs.values():
                program.start_step()
            for action in self._actions:
                program, given = self._programs[action.stage], self._given[action.stage]
                place = self._places[action.micro_batch]
                before = time.perf_counter()
                if action.kind == "forward":
                    program.forward(place, given.inputs, given.targets, True)
                else:
                    program.backward(place, given.returned)
                seen.setdefault((action.stage, action.kind), []).append(time.perf_counter() - before)
        return {
            index: (statistics.median(seen[index, "forward"]), statistics.median(seen[index, "backward"]))
            for index in self._programs
        }


def slowest(seen: Iterable[Mapping[int, Passes]]) -> list[Passes]:
    """Each stage's passes, of those who ran it the slowest: the others of a replica or a sum wait for them."""
    passes: dict[int, Passes] = {}
    for stages in seen:
        for stage, own in stages.items():
            passes[stage] = max(passes.get(stage, own), own, key=sum)
    return [passes[stage] for stage in sorted(passes)]


def one_by_one(model: Any, graph: Graph, plan: Plan) -> list[Passes]:
    """The passes of each stage, one partition after the other in this process.

    Each stage is compiled in full, so a large model takes its time.
    """
    return slowest(Rehearsal(model, graph, plan, partition).seconds() for partition in range(plan.partitions))

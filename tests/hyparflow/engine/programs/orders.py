"""Builds models with parallel branches for each part of the images; writes the messages of each program, in order.

``orders.py FILE SEED...``: FILE gets a list of programs, each a list of parts, each a list of messages
["exchange", [[receiver, shape], ...], [[sender, shape], ...]] or ["gather", shape, []]. No message is sent: a part that
runs another order would wait for ever.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from branches import branches
from hyparflow.backends import ProgramOptions, SpatialPart
from hyparflow.backends.tensorflow import build, spatial
from hyparflow.backends.tensorflow.stage_graph import Signature
from hyparflow.graph.calls import calls_of
from hyparflow.graph.spatial import divide
from hyparflow.planning.planner import plan

SIGNATURE = Signature(2, training=True, filled=False, targets=((0, "int64", (2,)),), sample_weights=())


class Parts:
    """A communicator that only knows its size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Get_size(self) -> int:
        """Return the number of parts."""
        return self.size


class Recorded(spatial.Messages):
    """Messages that are noted, by the token of their operation."""

    noted: dict[str, Any]

    def exchange(self, turn: int, sent: Any, received: Any, dtype: Any) -> Any:
        """Note who gets and sends what shape."""
        operation, made = super().exchange(turn, sent, received, dtype)
        shapes = [(part, list(tensor.shape)) for part, tensor in sent], [(part, list(s)) for part, s in received]
        self.noted[operation.get_attr("token").decode()] = ("exchange", *shapes)
        return operation, made

    def gather(self, turn: int, tensor: Any) -> Any:
        """Note the shape."""
        made = super().gather(turn, tensor)
        self.noted[made.op.get_attr("token").decode()] = ("gather", list(tensor.shape), [])
        return made


def main(file: Path, seeds: list[int]) -> None:
    """Build all models."""
    spatial.Messages = Recorded  # type: ignore[misc]
    file.write_text(json.dumps([program for seed in seeds for program in orders(seed)]))


def orders(seed: int) -> list[Any]:
    """Return the messages of each part, by program of two stages."""
    model, parts = branches(seed), 2 + seed % 3
    planned = plan(model, partitions=2, batch_size=2, micro_batches=1, spatial=parts, recompute=[seed % 2 == 0, False])
    calls = calls_of(model)
    division = divide(calls, parts)
    found: list[list[Any]] = []
    for part in range(parts):
        place = SpatialPart(division, part, Parts(parts), Parts(parts), lambda _: None)
        graph, options = division.local(calls.graph, part), ProgramOptions(spatial=place)
        found.append([])
        for stage in planned.stages:
            Recorded.noted = {}
            program = build(model, graph, planned.stages, stage.index, options)
            targets = SIGNATURE.targets if stage.outputs else ()
            programs = program._program(replace(SIGNATURE, targets=targets)).programs
            found[-1] += [run_order(each) for each in (programs.forward, programs.backward) if each is not None]
    return list(zip(*found, strict=True))


def run_order(program: Any) -> list[Any]:
    """Return the messages in the order of their dependencies, which must be total."""
    before: dict[Any, set[Any]] = {}
    waiting = list(program.function.graph.get_operations())
    while waiting:
        operation = waiting[-1]
        earlier = [*(value.op for value in operation.inputs), *operation.control_inputs]
        if missing := [each for each in earlier if each not in before]:
            waiting += missing
            continue
        waiting.pop()
        own = {each for each in earlier if each.type == "PyFunc"}
        before[operation] = own.union(*(before[each] for each in earlier))
    messages = sorted((each for each in before if each.type == "PyFunc"), key=lambda each: len(before[each]))
    assert [len(before[each]) for each in messages] == list(range(len(messages))), "some messages could run at once"
    return [Recorded.noted[each.get_attr("token").decode()] for each in messages]


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])

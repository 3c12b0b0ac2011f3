"""Measured costs of nodes and stages.

Each different node, or each stage of a plan, is run on synthetic micro-batches, as the same program that a rank would
run. Stages run in the order of the schedule, with all micro-batches that are in flight then, but without messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.planning.costs import Costs, Machine, by_signature
from hyparflow.planning.stages import Stage

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Node, Tensor
    from hyparflow.planning.plan import Plan
    from hyparflow.planning.stages import Stage


LARGEST = 32  # samples, enough to see the part of the costs that grows with them
ROUNDS, NODE_SECONDS = 3, 0.02  # minimum number of runs of each program, and the approximate time for quick ones
REHEARSAL_SECONDS = 1.0  # approximate duration of a rehearsal, at least one step
Passes = tuple[float, float]  # forward seconds, backward seconds


def measured(model: Any, graph: Graph, samples: tuple[int, int]) -> Costs:
    """Measure the costs of a model's nodes, once per signature and number of samples.

    Two numbers of samples separate the growing part from the fixed part. CPU time is measured, so other programs on the
    machine have little effect. The cheapest program without samples gives the cost of calling a program; within a
    stage, a node costs `Machine.node_seconds` instead.

    Args:
        model: The Keras model.
        graph: Its graph.
        samples: The minimum and maximum number of samples in a micro-batch.

    Raises:
        PlanError: TensorFlow uses a GPU, whose work takes no CPU time.
    """
    if device := elsewhere():
        raise PlanError(
            f"costs can only be measured on a CPU, but TensorFlow computes on {device}: say costs='estimated', and "
            "refinements=1 to time the stages there"
        )
    large = max(2, min(samples[1], LARGEST))
    small = max(1, min(samples[0], large // 4))
    timed = np.array(
        by_signature(graph, lambda node: _node(model, graph, node, (small, large)))
    )  # nodes, samples, pass
    each = np.maximum(timed[:, 1] - timed[:, 0], 0.0) / (large - small)
    constant = np.maximum(timed[:, 0] - small * each, 0.0)
    call = constant.min(axis=0)
    own = Machine().node_seconds
    fixed = constant - call + np.array([own, 2 * own])
    return Costs(fixed[:, 0], each[:, 0], fixed[:, 1], each[:, 1], float(call.mean()), "measured")


def elsewhere() -> str | None:
    """Return the device that TensorFlow uses, such as GPU:0, or None for the CPU."""
    from hyparflow.backends.tensorflow.memory import default_device, is_host

    device = default_device()
    return None if is_host(device) else device.rpartition("device:")[2]


def _node(model: Any, graph: Graph, node: Node, samples: tuple[int, int]) -> list[tuple[float, float]]:
    """Time one node for each number of samples, as a stage that sends all its outputs."""
    from hyparflow.backends.tensorflow import build

    stage = Stage(0, (node.index,), tuple(dict.fromkeys(node.inputs)), dict.fromkeys(node.outputs, (1,)), ())
    program = build(model, graph, (stage,), 0)
    return [_timed(program, micro_batch(model, graph, stage, size)) for size in samples]


def _timed(program: Any, given: MicroBatch) -> tuple[float, float]:
    from hyparflow.backends import Place

    place = Place(step=0, replica=0, micro_batch=0, replicas=1, micro_batches=1)
    program.start_step()

    def once() -> tuple[float, float]:
        begin = time.process_time()
        program.forward(place, given.inputs, given.targets, True)
        middle = time.process_time()
        program.backward(place, given.returned)
        return middle - begin, time.process_time() - middle

    return _least(once)


def _least(once: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Return the minimum of several rounds for each pass. The first round compiles and is ignored."""
    once()
    forward, backward, spent, rounds = [], [], 0.0, 0
    while rounds < ROUNDS or spent < NODE_SECONDS:
        ahead, back = once()
        forward.append(ahead)
        backward.append(back)
        spent += max(ahead + back, 1e-4)
        rounds += 1
    return min(forward), min(backward)


class Rehearsal:
    """The compiled stages of one partition of a plan, to be run on synthetic micro-batches."""

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
        """Run steps, and return stage -> median wall-clock times of its passes."""
        seen: dict[tuple[int, str], list[float]] = {}
        begin = time.perf_counter()
        while not seen or time.perf_counter() - begin < REHEARSAL_SECONDS:
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
    """Return the passes of each stage on the rank where they were slowest, because other ranks wait for it."""
    passes: dict[int, Passes] = {}
    for stages in seen:
        for stage, own in stages.items():
            passes[stage] = max(passes.get(stage, own), own, key=sum)
    return [passes[stage] for stage in sorted(passes)]


def one_by_one(model: Any, graph: Graph, plan: Plan) -> list[Passes]:
    """Time the passes of each stage, one partition after the other in this process.

    Each stage is compiled in full, which takes long for a large model.
    """
    return slowest(Rehearsal(model, graph, plan, partition).seconds() for partition in range(plan.partitions))


@dataclass(frozen=True)
class MicroBatch:
    """The inputs of a stage's passes, see ``hyparflow.backends.StageProgram``."""

    inputs: Mapping[int, Any]
    targets: Mapping[int, Any]
    returned: Mapping[int, list[Any]]


def micro_batch(model: Any, graph: Graph, stage: Stage, samples: int) -> MicroBatch:
    """Return a micro-batch with this number of samples for a stage.

    Args:
        model: The Keras model.
        graph: Its graph.
        stage: The stage.
        samples: Number of samples.
    """
    inputs = {tensor: _filled(graph.tensors[tensor], samples) for tensor in stage.receives}
    returned = {
        tensor: [_filled(graph.tensors[tensor], samples) for _ in consumers]
        for tensor, consumers in stage.sends.items()
        if graph.tensors[tensor].differentiable
    }
    return MicroBatch(inputs, _targets(model, graph, stage, samples), returned)


def _filled(tensor: Tensor, samples: int) -> Any:
    """Return values for a tensor: small numbers or, for integers, zeros, which are valid in every embedding."""
    shape = (samples, *tensor.shape)
    if "float" not in tensor.dtype or tensor.dtype == "bfloat16":
        return np.zeros(shape, "float32" if tensor.dtype == "bfloat16" else tensor.dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(tensor.dtype)


def _targets(model: Any, graph: Graph, stage: Stage, samples: int) -> dict[int, Any]:
    """Return targets for a stage's outputs, with the shapes that its losses require."""
    from hyparflow.backends import Target
    from hyparflow.backends.tensorflow.losses import compiled_losses

    if not stage.outputs:
        return {}
    found = {}
    for loss in compiled_losses(model):
        tensor = graph.tensors[graph.outputs[loss.output]]
        if tensor.index in stage.outputs:
            classes = _takes_classes(loss.function)
            shape = tensor.shape[:-1] if classes else tensor.shape
            found[loss.output] = Target(np.zeros((samples, *shape), "int32" if classes else "float32"))
    return found


def _takes_classes(loss: Any) -> bool:
    """Return whether the targets of a Keras loss are class indices, with one dimension less than the predictions.

    A loss that was requested by name is a wrapped function.
    """
    return any("sparse" in getattr(each, "__name__", "").lower() for each in (type(loss), getattr(loss, "fn", None)))

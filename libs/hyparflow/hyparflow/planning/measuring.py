"""Costs as they are: each different node, or each stage, run as the very program that a rank would run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.planning.costs import Costs, Machine, by_signature
from hyparflow.planning.stages import Stage

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Node, Tensor
    from hyparflow.planning.plan import Plan

LARGEST = 32  # samples: enough to see what grows with them
ROUNDS, SECONDS = 3, 0.02  # each program runs at least this often and, if it is quick, for about this long


def measured(model: Any, graph: Graph, samples: tuple[int, int]) -> Costs:
    """The costs of a model's nodes, one measurement per signature and number of samples.

    Two numbers of samples tell what grows with them from what does not. Time is that of the process: other programs on
    the machine change it little. What the cheapest program costs with no samples is the price of calling a program;
    within a stage a node costs `Machine.node_seconds` instead.

    :param samples: the least and the most samples that a micro-batch may have.
    """
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


def measured_stages(model: Any, graph: Graph, plan: Plan) -> list[tuple[float, float]]:
    """(forward seconds, backward seconds) of each stage of a plan, all run one after the other in this process.

    What `hyparflow.refine` takes. Each stage is compiled in full, so a large model takes its time.
    """
    sizes = (plan.micro_batch_size,)
    return [seconds for stage in plan.stages for seconds in _program(model, graph, plan.stages, stage.index, sizes)]


def _node(model: Any, graph: Graph, node: Node, samples: tuple[int, int]) -> list[tuple[float, float]]:
    """Seconds of one node's passes: a stage of its own, from which all that it makes is sent on."""
    stage = Stage(0, (node.index,), tuple(dict.fromkeys(node.inputs)), dict.fromkeys(node.outputs, (1,)), ())
    return _program(model, graph, (stage,), 0, samples)


def _program(
    model: Any, graph: Graph, stages: Sequence[Stage], index: int, sizes: Sequence[int]
) -> list[tuple[float, float]]:
    """Seconds of a stage's passes for each number of samples."""
    from hyparflow.backends.tensorflow import build

    program = build(model, graph, stages, index)
    return [_timed(model, graph, program, stages[index], samples) for samples in sizes]


def _timed(model: Any, graph: Graph, program: Any, stage: Stage, samples: int) -> tuple[float, float]:
    from hyparflow.backends import Place

    place = Place(step=0, replica=0, micro_batch=0, replicas=1, micro_batches=1)
    inputs = {tensor: _filled(graph.tensors[tensor], samples) for tensor in stage.receives}
    targets = _targets(model, graph, stage, samples)
    returned = {
        tensor: [_filled(graph.tensors[tensor], samples) for _ in consumers]
        for tensor, consumers in stage.sends.items()
        if graph.tensors[tensor].differentiable
    }
    program.start_step()

    def once() -> tuple[float, float]:
        begin = time.process_time()
        program.forward(place, inputs, targets, True)
        middle = time.process_time()
        program.backward(place, returned)
        return middle - begin, time.process_time() - middle

    return _least(once)


def _least(once: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """The least of several rounds, each pass by itself. The first round compiles, and does not count."""
    once()
    forward, backward, spent, rounds = [], [], 0.0, 0
    while rounds < ROUNDS or spent < SECONDS:
        ahead, back = once()
        forward.append(ahead)
        backward.append(back)
        spent += max(ahead + back, 1e-4)
        rounds += 1
    return min(forward), min(backward)


def _filled(tensor: Tensor, samples: int) -> Any:
    """Values of a tensor: small numbers, for integers zeros, which every embedding knows."""
    shape = (samples, *tensor.shape)
    if "float" not in tensor.dtype or tensor.dtype == "bfloat16":
        return np.zeros(shape, "float32" if tensor.dtype == "bfloat16" else tensor.dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(tensor.dtype)


def _targets(model: Any, graph: Graph, stage: Stage, samples: int) -> dict[int, Any]:
    """Something to compare a stage's outputs with, of the shape that its loss takes."""
    from hyparflow.backends import Target
    from hyparflow.backends.tensorflow.losses import compiled_losses

    if not stage.outputs:
        return {}
    found = {}
    for loss in compiled_losses(model):
        tensor = graph.tensors[graph.outputs[loss.output]]
        if tensor.index in stage.outputs:
            classes = "sparse" in type(loss.function).__name__.lower()  # targets that are numbers of classes
            shape = tensor.shape[:-1] if classes else tensor.shape
            found[loss.output] = Target(np.zeros((samples, *shape), "int32" if classes else "float32"))
    return found

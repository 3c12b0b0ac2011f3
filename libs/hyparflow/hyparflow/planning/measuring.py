"""Costs as they are: each different node, run as the very program that a rank would run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.planning.costs import Costs, Machine, by_signature
from hyparflow.planning.samples import MicroBatch, micro_batch
from hyparflow.planning.stages import Stage

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph, Node

LARGEST = 32  # samples: enough to see what grows with them
ROUNDS, SECONDS = 3, 0.02  # each program runs at least this often and, if it is quick, for about this long


def measured(model: Any, graph: Graph, samples: tuple[int, int]) -> Costs:
    """The costs of a model's nodes, one measurement per signature and number of samples.

    Two numbers of samples tell what grows with them from what does not. Time is that of the process: other programs on
    the machine change it little. What the cheapest program costs with no samples is the price of calling a program;
    within a stage a node costs `Machine.node_seconds` instead.

    :param samples: the least and the most samples that a micro-batch may have.
    :raises PlanError: where TensorFlow computes on a GPU, whose work takes a process no time.
    """
    if device := elsewhere():
        raise PlanError(
            f"costs are measured on processors, and TensorFlow computes on {device}: say costs='estimated', and "
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
    """The device that TensorFlow computes on, such as GPU:0, if it is not the processor."""
    from hyparflow.backends.tensorflow.border import default_device, is_host

    device = default_device()
    return None if is_host(device) else device.rpartition("device:")[2]


def _node(model: Any, graph: Graph, node: Node, samples: tuple[int, int]) -> list[tuple[float, float]]:
    """Seconds of one node's passes for each number of samples: a stage of its own, from which all it makes is sent."""
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

"""The exact minimax cut: stages are runs of nodes in topological order, and the costliest is as cheap as possible."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hyparflow.errors import PlanError
from hyparflow.planning.costs import Memory, held_bytes
from hyparflow.planning.network import Network

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph

    Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Bounds:
    """The constraints of each stage.

    `in_flight`: number of micro-batches that a stage holds at once. `recompute`: True or False per stage, None to
    decide by memory. `limit`: bytes per stage, None for no limit. `copies`: of the weights, see `Memory`.
    """

    in_flight: tuple[int, ...]
    recompute: tuple[bool | None, ...]
    limit: float | None = None
    copies: float = Memory().copies


def cut(
    graph: Graph, forward: Vector, backward: Vector, *, samples: int, bounds: Bounds, network: Network
) -> tuple[int, ...]:
    """Return the stage of each node in the best cut.

    The cost of a stage consists of its nodes' passes, recomputation if memory requires it, and its messages: each
    tensor that is received or sent costs both ends a copy, once forwards and once as a gradient. A sent tensor is
    counted once, however many stages receive it. The algorithm is dynamic programming over (stage, end) with one sweep
    over the ends. Runs that compute longer than a bound for the best cut are skipped, and the sweep is repeated if the
    bound was too low, so the result is still exact.

    Args:
        graph: The model.
        forward: Seconds of each node's forward pass over a micro-batch.
        backward: Seconds of each node's backward pass.
        samples: Samples in a micro-batch.
        bounds: The constraints of each stage.
        network: The network between stages.

    Raises:
        PlanError: No cut fits into the memory limit.
    """
    stages = len(bounds.in_flight)
    _check_room(graph, stages)
    both = forward + backward
    most = 1.2 * both.sum() / stages + both.max(initial=0.0)
    while True:
        best, assignment = _below(most, _Sweep(graph, forward, backward, samples, network), bounds)
        if best <= most:
            return assignment
        if most > both.sum() and not np.isfinite(best):
            raise PlanError(
                f"no cut of {graph.name} into {stages} stages fits into {bounds.limit or 0:,.0f} bytes per stage: use "
                f"more partitions, smaller micro-batches, or recomputation"
            )
        most = best if np.isfinite(best) else 2 * most


def _closed(graph: Graph) -> set[int]:
    """Return the nodes at which no stage may begin, because a group of nodes must be on one stage."""
    return {node for group in graph.bound for node in range(group[0] + 1, group[-1] + 1)}


def _check_room(graph: Graph, stages: int) -> None:
    """Raise PlanError if there are too few places to cut."""
    room = len(graph.nodes) - len(_closed(graph))
    if room < stages:
        group = max(graph.bound, key=lambda each: each[-1] - each[0])
        name = graph.nodes[group[0]].name
        raise PlanError(
            f"all calls of the shared BatchNormalization in '{name}' belong on one stage, because its moving "
            f"statistics change with each call; that leaves room for {room} of {stages} stages: take fewer partitions, "
            "freeze it (trainable=False), or call it in fewer places"
        )


def _below(most: float, sweep: _Sweep, bounds: Bounds) -> tuple[float, tuple[int, ...]]:
    """Return the best cut with stages that compute at most `most`, after the cost of its most expensive stage."""
    stages, count = len(bounds.in_flight), len(sweep.graph.nodes)
    best = np.full((stages + 1, count + 1), np.inf)
    best[0, 0] = 0.0
    origin = np.zeros((stages + 1, count + 1), dtype=np.int32)
    in_flight = np.array(bounds.in_flight, dtype=float)[:, None]
    rows = np.arange(stages)
    closed = _closed(sweep.graph)
    for end in range(1, count + 1):
        sweep.advance()
        if end in closed:
            continue
        low = int(np.searchsorted(sweep.both[:end], sweep.both[end] - most))
        if low >= end:  # this node alone takes longer
            continue
        seconds = np.maximum(best[:-1, low:end], sweep.costs(bounds, in_flight, low))
        begin = seconds.argmin(axis=1)
        best[1:, end] = seconds[rows, begin]
        origin[1:, end] = low + begin
    if not np.isfinite(best[stages, count]):
        return float("inf"), ()
    assignment = [0] * count
    end = count
    for stage in range(stages, 0, -1):
        begin_here = int(origin[stage, end])
        assignment[begin_here:end] = [stage - 1] * (end - begin_here)
        end = begin_here
    return float(best[stages, count]), tuple(assignment)


class _Sweep:
    """The costs of all runs of nodes [begin, end), as vectors over begin, for one end after the other."""

    def __init__(self, graph: Graph, forward: Vector, backward: Vector, samples: int, network: Network) -> None:
        self.graph, self.samples, self.network = graph, samples, network
        count = len(graph.nodes)
        self.end = 0
        self.forward = np.concatenate(([0.0], np.cumsum(forward)))
        self.both = np.concatenate(([0.0], np.cumsum(forward + backward)))
        held = [held_bytes(graph, node) for node in range(count)]
        self.held = np.concatenate(([0.0], np.cumsum(held, dtype=float)))
        self.crossing = np.zeros(count)  # bytes of a sample from or to other nodes
        self.messages = np.zeros(count)
        self.received = np.zeros(count)  # received bytes of a sample, including the model's inputs
        self.weights = np.zeros(count)
        self._before: dict[int, int] = {}  # tensor -> its previous consumer
        self._called: dict[str, int] = {}  # layer -> its previous node
        self._leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)  # last consumer -> (producer, bytes)

    def advance(self) -> None:
        """Add the next node."""
        index = self.end
        self.end += 1
        node = self.graph.nodes[index]
        for number in dict.fromkeys(node.inputs):
            tensor = self.graph.tensors[number]
            made = -1 if tensor.producer is None else tensor.producer
            # Runs that begin after the producer and after the previous consumer receive the tensor for this node.
            fresh = slice(max(made, self._before.get(number, -1)) + 1, index + 1)
            self.received[fresh] += tensor.bytes_per_sample
            if made >= 0:
                self.crossing[fresh] += tensor.bytes_per_sample
                self.messages[fresh] += 1
            self._before[number] = index
        for producer, size in self._leaving.pop(index, ()):
            self.crossing[: producer + 1] -= size
            self.messages[: producer + 1] -= 1
        for number in node.outputs:
            tensor = self.graph.tensors[number]
            if tensor.consumers:
                self.crossing[: index + 1] += tensor.bytes_per_sample
                self.messages[: index + 1] += 1
                self._leaving[max(tensor.consumers)].append((index, tensor.bytes_per_sample))
        # The weights of a layer count once in a run with several of its nodes.
        self.weights[self._called.get(node.layer, -1) + 1 : index + 1] += 4 * node.parameters
        self._called[node.layer] = index

    def costs(self, bounds: Bounds, in_flight: Vector, low: int) -> Vector:
        """Return seconds per stage (rows) and begin from `low` (columns), infinite if the memory is insufficient."""
        run = slice(low, self.end)
        size = self.samples * self.crossing[run] / self.network.local_bandwidth
        seconds = self.both[self.end] - self.both[run] + 2 * (size + self.messages[run] * self.network.message_seconds)
        again = self.forward[self.end] - self.forward[run]
        decided = np.array([bool(choice) for choice in bounds.recompute])[:, None]
        if bounds.limit is None:
            return np.where(decided, seconds + again, seconds)
        held = self.samples * (self.held[self.end] - self.held[run])
        received = self.samples * self.received[run]
        weights = bounds.copies * self.weights[run]
        plain = weights + in_flight * (held + received) <= bounds.limit
        lean = weights + in_flight * received + held <= bounds.limit
        undecided = np.array([choice is None for choice in bounds.recompute])[:, None]
        without = np.where(plain & (undecided | ~decided), seconds, np.inf)
        return np.minimum(without, np.where(lean & (undecided | decided), seconds + again, np.inf))

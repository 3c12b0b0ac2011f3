"""What a step will take: stages with costs, their timeline, the sums of gradients and the update behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hyparflow.planning.memory import Memory, activation_bytes, peak_bytes, received_bytes, working_bytes
from hyparflow.planning.stages import Stage
from hyparflow.planning.timing import Timeline, timeline
from hyparflow.schedules.actions import Action, Schedule, owner
from hyparflow.simulate.network import Network

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph
    from hyparflow.planning.costs import Costs


UPDATE_BANDWIDTH = 1.0e9  # bytes of weights per second that an optimizer updates on one core


@dataclass(frozen=True)
class Prediction:
    """What a step is expected to take; the tuples have one value per partition."""

    step_seconds: float
    busy_seconds: tuple[float, ...]  # computing, the update with it
    tail_seconds: tuple[float, ...]  # after the last action: the gradients' sum over the replicas, the update
    peak_bytes: tuple[int, ...]  # weights, gradients, optimizer slots, activations; without the process itself

    @property
    def bubble(self) -> tuple[float, ...]:
        """The share of the step in which a partition waits."""
        return tuple(1 - busy / self.step_seconds if self.step_seconds else 0.0 for busy in self.busy_seconds)


def with_costs(graph: Graph, stage: Stage, costs: Costs, samples: int) -> Stage:
    """A stage with its seconds and bytes of a micro-batch.

    A stage that sends nothing computes its gradients in the same program as its forward pass: its backward pass only
    hands them out.
    """
    nodes = list(stage.nodes)
    forward = float(costs.forward(samples)[nodes].sum())
    backward = float(costs.backward(samples)[nodes].sum())
    held = activation_bytes(graph, stage, samples)
    if not stage.sends:
        # What was received stays where it came, and its gradients are there at once.
        forward, backward, held = forward + backward, 0.0, 2 * samples * received_bytes(graph, stage)
    elif stage.recompute:
        backward += forward
    return replace(
        stage,
        forward_seconds=forward + costs.action_seconds,
        backward_seconds=backward + (costs.action_seconds if stage.sends else 0.0),
        activation_bytes=held,
        working_bytes=working_bytes(graph, stage, samples),
    )


def traffic(stages: Sequence[Stage], tensors: Mapping[int, tuple[str, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """(producing stage, consuming stage) -> messages and bytes of one sample."""
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for stage in stages:
        for tensor, consumers in stage.sends.items():
            for consumer in consumers:
                count, size = sums.get((stage.index, consumer), (0, 0))
                sums[stage.index, consumer] = (count + 1, size + tensors[tensor][1])
    return sums


def run(
    schedule: Schedule,
    stages: Sequence[Stage],
    tensors: Mapping[int, tuple[str, int]],
    samples: int,
    network: Network,
) -> Timeline:
    """The timeline of a schedule over stages with costs, all ranks on one machine.

    What a message costs the two ranks themselves is part of their passes; its way through the memory comes between.
    """
    messages: Counter[int] = Counter()
    transfers = {}
    for (producer, consumer), (count, size) in traffic(stages, tensors).items():
        messages[producer] += count
        messages[consumer] += count
        transfers[producer, consumer] = network.message(samples * size)
    own = [messages[stage.index] * network.message_seconds for stage in stages]
    forward = [stage.forward_seconds + own[stage.index] for stage in stages]
    backward = [stage.backward_seconds + own[stage.index] for stage in stages]
    return timeline(schedule, forward, backward, transfers)


def owners(actions: Sequence[Action], partitions: int) -> set[int]:
    """The partitions of a replica that have the same stages, and sum their gradients: two under GEMS, else one.

    :param actions: what one of them computes.
    """
    pipelines = {action.pipeline for action in actions}
    return {owner(action.stage, pipeline, partitions) for action in actions for pipeline in pipelines}


def predict(
    schedule: Schedule,
    stages: Sequence[Stage],
    *,
    tensors: Mapping[int, tuple[str, int]],
    samples: int,
    replicas: int,
    memory: Memory,
    network: Network,
) -> Prediction:
    """What a step is expected to take.

    :param stages: with their costs (`with_costs`).
    """
    spans = run(schedule, stages, tensors, samples, network)
    tails, updates, ends = [], [], []
    for actions, done in zip(schedule, spans.partitions, strict=True):
        size = sum(stages[stage].parameter_bytes for stage in {action.stage for action in actions})
        updates.append(size / UPDATE_BANDWIDTH)
        tails.append(network.allreduce(size, 1, replicas * len(owners(actions, len(schedule)))) + updates[-1])
        ends.append(done[-1].end + tails[-1])
    return Prediction(
        step_seconds=max(ends),
        busy_seconds=tuple(busy + update for busy, update in zip(spans.busy, updates, strict=True)),
        tail_seconds=tuple(tails),
        peak_bytes=tuple(peak_bytes(actions, stages, memory) for actions in schedule),
    )

"""The predicted step: stages with costs, their timeline, sums of gradients, and update.

In the timeline, each action starts as early as its tensors, gradients and partition allow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub
from typing import TYPE_CHECKING

from hyparflow.errors import PlanError
from hyparflow.planning.costs import Memory, activation_bytes, peak_bytes, received_bytes, working_bytes
from hyparflow.planning.network import Network
from hyparflow.planning.stages import Stage
from hyparflow.schedules import Action, Schedule, owner

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph
    from hyparflow.planning.costs import Costs


UPDATE_BANDWIDTH = 1.0e9  # bytes of weights per second that an optimizer updates on one core


@dataclass(frozen=True)
class Prediction:
    """The prediction for a step; tuples have one value per partition."""

    step_seconds: float
    busy_seconds: tuple[float, ...]  # computing, including the update
    tail_seconds: tuple[float, ...]  # after the last action: sum of the gradients over the replicas, update
    peak_bytes: tuple[int, ...]  # weights, gradients, optimizer slots and activations, without the process itself


def with_costs(graph: Graph, stage: Stage, costs: Costs, samples: int) -> Stage:
    """Return a stage with its seconds and bytes for a micro-batch.

    A stage that sends nothing computes its gradients in the same program as its forward pass; its backward pass only
    returns them.

    Args:
        graph: The model.
        stage: The stage.
        costs: The costs of the nodes.
        samples: Samples in a micro-batch.
    """
    nodes = list(stage.nodes)
    forward = float(costs.forward(samples)[nodes].sum())
    backward = float(costs.backward(samples)[nodes].sum())
    held = activation_bytes(graph, stage, samples)
    if not stage.sends:
        # Received values stay in their buffers, and the gradients exist at once.
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
    """Return (producing stage, consuming stage) -> number of messages, and bytes of one sample."""
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
    """Return the timeline of a schedule over stages with costs, with all ranks on one machine.

    The time that a message costs its two ranks is part of their passes; its transfer time comes in between.

    Args:
        schedule: The actions of each partition.
        stages: The stages with their costs.
        tensors: Tensors between stages: name, bytes per sample.
        samples: Samples in a micro-batch.
        network: The network between ranks.
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
    """Return the partitions of a replica that sum the gradients of the same stages: two under GEMS, else one.

    ``actions`` are those of one of the partitions.
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
    """Predict a step.

    Args:
        schedule: The actions of each partition.
        stages: The stages with their costs (`with_costs`).
        tensors: Tensors between stages: name, bytes per sample.
        samples: Samples in a micro-batch.
        replicas: Copies of the model.
        memory: The memory of a rank besides activations.
        network: The network between ranks.
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


@dataclass(frozen=True)
class PlannedSpan:
    """One action, in seconds since the start of the step."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of each partition, in order."""

    partitions: tuple[tuple[PlannedSpan, ...], ...]

    @property
    def seconds(self) -> float:
        """The end of the last action."""
        return max((spans[-1].end for spans in self.partitions if spans), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """The seconds that each partition computes."""
        return tuple(sum(span.end - span.begin for span in spans) for spans in self.partitions)

    @property
    def idle(self) -> tuple[float, ...]:
        """The seconds that each partition waits before its actions, and for the end of the last action of all."""
        seconds = self.seconds
        begins = ([*(span.begin for span in spans), seconds] for spans in self.partitions)
        ends = ([0.0, *(span.end for span in spans)] for spans in self.partitions)
        return tuple(sum(map(sub, *both)) for both in zip(begins, ends, strict=True))


def timeline(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    transfers: Mapping[tuple[int, int], float],
) -> Timeline:
    """Compute the timeline of a schedule from the times of its stages.

    Args:
        schedule: The actions of each partition.
        forward: Seconds of each stage's forward pass of one micro-batch.
        backward: Seconds of each stage's backward pass.
        transfers: (producing stage, consuming stage) -> seconds from the end of the producer's forward pass until the
            consumer has its tensors; the gradients take as long on their way back.

    Raises:
        PlanError: The schedule deadlocks (`hyparflow.schedules.check` says why).
    """
    inward: dict[int, list[tuple[int, float]]] = defaultdict(list)
    outward: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (producer, consumer), seconds in transfers.items():
        inward[consumer].append((producer, seconds))
        outward[producer].append((consumer, seconds))
    ends: dict[tuple[str, int, int, int], float] = {}
    spans: list[list[PlannedSpan]] = [[] for _ in schedule]
    waiting: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    ready = list(range(len(schedule)))
    while ready:
        partition = ready.pop()
        done = spans[partition]
        now = done[-1].end if done else 0.0
        while len(done) < len(schedule[partition]):
            action = schedule[partition][len(done)]
            sources = inward if action.kind == "forward" else outward
            begin = now
            for stage, seconds in sources[action.stage]:
                key = (action.kind, stage, action.micro_batch, action.pipeline)
                if key not in ends:
                    waiting[key].append(partition)
                    break
                begin = max(begin, ends[key] + seconds)
            else:
                now = begin + (forward if action.kind == "forward" else backward)[action.stage]
                key = (action.kind, action.stage, action.micro_batch, action.pipeline)
                ends[key] = now
                done.append(PlannedSpan(action, begin, now))
                ready += waiting.pop(key, [])
                continue
            break
    if any(len(done) < len(actions) for done, actions in zip(spans, schedule, strict=True)):
        raise PlanError("the schedule never ends, because some actions wait for each other")
    return Timeline(tuple(tuple(done) for done in spans))

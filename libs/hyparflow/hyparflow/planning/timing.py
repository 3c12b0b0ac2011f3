"""A step as a timeline: the actions of all partitions, each as early as its tensors, gradients and partition allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyparflow.errors import PlanError
from hyparflow.schedules.actions import Action, Schedule


@dataclass(frozen=True)
class Span:
    """One action, in seconds since the step began."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of each partition, in order."""

    partitions: tuple[tuple[Span, ...], ...]

    @property
    def seconds(self) -> float:
        """When the last action ends."""
        return max((spans[-1].end for spans in self.partitions if spans), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each partition computes."""
        return tuple(sum(span.end - span.begin for span in spans) for spans in self.partitions)


def timeline(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    transfers: Mapping[tuple[int, int], float],
) -> Timeline:
    """Run a schedule over the seconds of its stages.

    :param forward: seconds of each stage's forward pass of one micro-batch; `backward` likewise.
    :param transfers: (producing stage, consuming stage) -> seconds from the end of the one's forward pass until its
        tensors are at the other; the gradients take as long on their way back.
    :raises PlanError: if the schedule does not end (`hyparflow.schedules.check` says why).
    """
    inward: dict[int, list[tuple[int, float]]] = defaultdict(list)
    outward: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (producer, consumer), seconds in transfers.items():
        inward[consumer].append((producer, seconds))
        outward[producer].append((consumer, seconds))
    ends: dict[tuple[str, int, int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in schedule]
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
                done.append(Span(action, begin, now))
                ready += waiting.pop(key, [])
                continue
            break
    if any(len(done) < len(actions) for done, actions in zip(spans, schedule, strict=True)):
        raise PlanError("the schedule never ends: some actions wait for each other")
    return Timeline(tuple(tuple(done) for done in spans))

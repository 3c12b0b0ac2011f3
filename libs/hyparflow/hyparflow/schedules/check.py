"""Deadlock check of schedules: all ranks are simulated over the actual crossings, before anything runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hyparflow.errors import PlanError
from hyparflow.schedules.actions import Action, Schedule, owner


def check(schedule: Schedule, crossings: Iterable[tuple[int, int]]) -> None:
    """Run a schedule without computing.

    Args:
        schedule: The actions of each partition.
        crossings: Pairs (producing stage, consuming stage) with a tensor between them.

    Raises:
        PlanError: Actions are missing, duplicated or on the wrong partition, or some wait for each other.
    """
    pairs = sorted({(producer, consumer) for producer, consumer in crossings if producer != consumer})
    if found := _incomplete(schedule, pairs):
        raise PlanError(*found)
    needs = _needs(schedule, pairs)
    done = _run(schedule, needs)
    heads = [actions[count] for actions, count in zip(schedule, done, strict=True) if count < len(actions)]
    if heads:
        raise PlanError(_cycle(schedule, needs, done, heads[0]))


def _incomplete(schedule: Schedule, pairs: list[tuple[int, int]]) -> list[str]:
    """Return the differences between the actions of a schedule and those that every stage requires."""
    partitions = len(schedule)
    seen: dict[Action, int] = defaultdict(int)
    found = []
    for partition, actions in enumerate(schedule):
        for action in actions:
            seen[action] += 1
            place = owner(action.stage, action.pipeline, partitions)
            if place != partition:
                found.append(f"{action} stands on partition {partition}, and the stage lives on partition {place}")
    found += [f"{action} stands {count} times in the schedule" for action, count in sorted(seen.items()) if count > 1]
    stages = 1 + max([action.stage for action in seen] + [stage for pair in pairs for stage in pair], default=-1)
    micro_batches = sorted({(action.pipeline, action.micro_batch) for action in seen})
    for pipeline, micro_batch in micro_batches:
        for stage in range(stages):
            for kind in ("forward", "backward"):
                action = Action(kind, stage, micro_batch, pipeline)
                if action not in seen:
                    found.append(f"{action} is missing on partition {owner(stage, pipeline, partitions)}")
    return found


def _needs(schedule: Schedule, pairs: list[tuple[int, int]]) -> dict[Action, list[Action]]:
    """Return the dependencies of each action: tensors, gradients, and a stage's own forward before its backward."""
    inward, outward = defaultdict(list), defaultdict(list)
    for producer, consumer in pairs:
        inward[consumer].append(producer)
        outward[producer].append(consumer)
    needs = {}
    for action in (action for actions in schedule for action in actions):
        rest = (action.micro_batch, action.pipeline)
        if action.kind == "forward":
            needs[action] = [Action("forward", stage, *rest) for stage in inward[action.stage]]
        else:
            own = [Action("forward", action.stage, *rest)]
            needs[action] = own + [Action("backward", stage, *rest) for stage in outward[action.stage]]
    return needs


def _run(schedule: Schedule, needs: dict[Action, list[Action]]) -> list[int]:
    """Return the number of actions of each partition that can run before all partitions wait or are done."""
    done: set[Action] = set()
    counts = [0] * len(schedule)
    ready = list(range(len(schedule)))
    waiting: dict[Action, list[int]] = defaultdict(list)  # the partitions whose next action waits for this one
    while ready:
        partition = ready.pop()
        while counts[partition] < len(schedule[partition]):
            action = schedule[partition][counts[partition]]
            missing = next((need for need in needs[action] if need not in done), None)
            if missing is not None:
                waiting[missing].append(partition)
                break
            done.add(action)
            counts[partition] += 1
            ready += waiting.pop(action, [])
    return counts


def _cycle(schedule: Schedule, needs: dict[Action, list[Action]], done: list[int], start: Action) -> str:
    """Describe the cycle of actions that wait for each other in one sentence."""
    before: dict[Action, Action] = {}  # the previous action of its partition
    finished = {action for actions, count in zip(schedule, done, strict=True) for action in actions[:count]}
    for actions in schedule:
        before.update(zip(actions[1:], actions[:-1], strict=True))
    path: list[Action] = []
    action = start
    while action not in path:
        path.append(action)
        unmet = [need for need in needs[action] if need not in finished]
        # An action without unmet dependencies waits for the previous action of its partition.
        action = unmet[0] if unmet else before[action]
    circle = [*path[path.index(action) :], action]
    partitions = len(schedule)
    words = " -> ".join(f"{one} (partition {owner(one.stage, one.pipeline, partitions)})" for one in circle)
    return f"the schedule would never end, because each of these waits for the next: {words}"

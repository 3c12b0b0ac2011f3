"""The actions of a partition.

A schedule contains compute actions only. Messages follow from them: the inputs of an action are received before it, and
its results are sent after it, directly to every consumer. On each stage, the backward passes are in the order of the
micro-batches, whatever the schedule, so the gradients are always added in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["forward", "backward"]
Name = Literal["gpipe", "1f1b", "interleaved", "gems"]
NAMES: tuple[str, ...] = get_args(Name)


@dataclass(frozen=True, order=True)
class Action:
    """A stage's forward or backward pass of one micro-batch.

    `micro_batch` counts within the replica's step, over both pipelines: 0..m-1.
    """

    kind: Kind
    stage: int
    micro_batch: int
    pipeline: int = 0

    def __str__(self) -> str:
        pipeline = f" of pipeline {self.pipeline}" if self.pipeline else ""
        return f"{self.kind} of micro-batch {self.micro_batch} on stage {self.stage}{pipeline}"


#: The compute actions of each partition, in order.
Schedule = tuple[tuple[Action, ...], ...]


def owner(stage: int, pipeline: int, partitions: int) -> int:
    """Return the partition of a stage: stages are dealt out in turn, in reverse order in pipeline 1 (GEMS)."""
    place = stage % partitions
    return partitions - 1 - place if pipeline else place


def stages_on(partition: int, pipeline: int, partitions: int, chunks: int = 1) -> tuple[int, ...]:
    """Return the stages of a partition in a pipeline, in order: one per chunk."""
    place = partitions - 1 - partition if pipeline else partition
    return tuple(chunk * partitions + place for chunk in range(chunks))


def pipelines(name: str) -> int:
    """Return the number of copies of the model per replica under a schedule."""
    return 2 if name == "gems" else 1


def problems(name: str, partitions: int, micro_batches: int, chunks: int = 1) -> list[str]:
    """Return all problems of a schedule with these numbers.

    Args:
        name: The schedule.
        partitions: Number of partitions.
        micro_batches: Micro-batches of a replica's step.
        chunks: Stages per partition (default: 1).
    """
    found = []
    if name not in NAMES:
        found.append(f"there is no schedule {name!r}; there are {', '.join(NAMES)}")
    found += [
        f"{what} must be at least 1, not {value}"
        for what, value in (("partitions", partitions), ("micro-batches", micro_batches), ("chunks", chunks))
        if value < 1
    ]
    if found:
        return found
    if name == "interleaved":
        if chunks < 2:
            found.append("the interleaved schedule needs at least 2 chunks per partition; with 1 it is 1f1b")
        if partitions < 2:
            found.append("the interleaved schedule needs at least 2 partitions")
        if micro_batches % partitions:
            found.append(
                f"in the interleaved schedule, micro-batches must be a multiple of the partitions: "
                f"{micro_batches} is not one of {partitions}"
            )
    elif chunks > 1:
        found.append(f"only the interleaved schedule takes several chunks per partition; {name} has {chunks}")
    if name == "gems" and micro_batches % 2:
        found.append(f"GEMS shares the micro-batches between two pipelines: {micro_batches} is odd")
    return found


def in_flight(actions: tuple[Action, ...]) -> int:
    """Return the maximum number of passes between forward and backward in a partition's step."""
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most

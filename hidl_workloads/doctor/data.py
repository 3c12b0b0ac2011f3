"""Rules for the data that the ranks of a training read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hidl_workloads.doctor.finding import Evidence, Rules

_TOLERATED = 0.05  # share of a step


@dataclass(frozen=True)
class Input:
    """The input of a training.

    Attributes:
        wait: Share of the time of the steps in which the slowest rank waited for its data.
        seconds: Time that a reader of that rank needs for a batch.
        readers: Number of readers on each rank.
        most: Largest number of readers that is allowed, and has a core for each.
    """

    wait: float
    seconds: float
    readers: int
    most: int


RULES: Rules[Input] = Rules()


@RULES.rule(
    "HD640",
    "The training is input-bound",
    severity="warning",
    why="The ranks wait for the next batch instead of computing, and since they average gradients, all ranks wait for "
    "the slowest reader. Scaling results then describe the file system and the decoding of images, not MPI.",
)
def input_bound(facts: Input) -> Iterator[Evidence]:
    """Report a warning if ranks wait for data in more than a twentieth of the time."""
    if facts.wait > _TOLERATED:
        seen = f"ranks wait for data in {facts.wait:.0%} of the time; reading a batch takes {facts.seconds:.3g} s"
        more = min(2 * facts.readers, facts.most)
        readers = f"more readers (--set readers={more}), " if more > facts.readers else ""
        yield Evidence(seen, f"use {readers}fewer ranks per node, smaller images or a faster file system")

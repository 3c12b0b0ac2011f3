"""A request for a plan, and its validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hyparflow.planning.costs import Memory
from hyparflow.planning.network import Network
from hyparflow.schedules import problems

if TYPE_CHECKING:
    from hyparflow.graph.types import Graph

Assignment = Literal["auto"] | Sequence[str] | Mapping[str | int, int]
Recompute = Literal["auto"] | bool | Sequence[bool]
CANDIDATES = 12  # maximum number of candidates that "auto" tries


@dataclass(frozen=True)
class Request:
    """The arguments of `plan`, apart from the model and its costs."""

    partitions: int
    replicas: int
    batch_size: int
    micro_batches: int | Literal["auto"]
    schedule: str
    chunks: int
    recompute: Recompute
    assignment: Assignment
    memory: Memory
    network: Network
    spatial: int = 1

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.partitions * self.chunks


def wrong_numbers(request: Request) -> list[str]:
    """Return the problems of a request that do not depend on the model."""
    count = request.micro_batches
    wanted = 1 if count == "auto" else count
    found = [
        f"{what} must be at least 1, not {value}"
        for what, value in (
            ("replicas", request.replicas),
            ("the batch size", request.batch_size),
            ("the parts of the images", request.spatial),
        )
        if value < 1
    ]
    numbers = problems(request.schedule, request.partitions, wanted, request.chunks)
    if count == "auto":  # the number that is chosen will fit
        numbers = [problem for problem in numbers if "micro-batches" not in problem]
    found += numbers
    if found:
        return found
    if request.batch_size % request.replicas:
        found.append(f"a batch of {request.batch_size} samples does not divide by {request.replicas} replicas")
    elif count != "auto" and request.batch_size // request.replicas % count:
        share = request.batch_size // request.replicas
        found.append(f"a replica's {share} samples do not divide by {count} micro-batches")
    elif not counts_of(request):
        share = request.batch_size // request.replicas
        found.append(f"no number of micro-batches that {request.schedule} supports divides a replica's {share} samples")
    if isinstance(request.recompute, Sequence) and not isinstance(request.recompute, str):
        if len(request.recompute) != request.stages:
            found.append(f"recompute names {len(request.recompute)} stages; there are {request.stages}")
    elif request.recompute not in ("auto", True, False):
        found.append(f"recompute must be auto, True, False or a list of these per stage, not {request.recompute!r}")
    return found


def wrong_for(graph: Graph, request: Request) -> list[str]:
    """Return the problems of a request for this model."""
    if request.stages <= len(graph.nodes):
        return []
    shares = f" of {request.chunks} chunks" if request.chunks > 1 else ""
    return [
        f"{graph.name} has {len(graph.nodes)} nodes: too few for {request.partitions} partitions{shares}; "
        f"take at most {len(graph.nodes) // request.chunks}"
    ]


def counts_of(request: Request) -> list[int]:
    """Return the numbers of micro-batches to try: the requested one, or those that fit the batch and the schedule."""
    if request.micro_batches != "auto":
        return [request.micro_batches]
    share = request.batch_size // request.replicas
    fit = [
        count
        for count in range(1, share + 1)
        if share % count == 0 and not problems(request.schedule, request.partitions, count, request.chunks)
    ]
    if request.partitions == 1:
        return fit[:CANDIDATES]
    # More than 8 per partition hardly shorten the bubble, but limited memory may require them.
    return [count for count in fit if count <= 8 * request.partitions][-CANDIDATES:] or fit[:1]

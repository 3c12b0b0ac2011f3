"""What several outputs of one scheduler tell together, and where they contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from hidl_cli.site.node_kinds import folded
from hidl_cli.site.probes.facts import Batch, Hardware, ProbedNode, Queue

T = TypeVar("T")
_WIDTH = 40  # characters of folded node names in a message


@dataclass(frozen=True)
class Source:
    """A description of a scheduler, and the files that it is from."""

    files: str
    batch: Batch


@dataclass
class _Differences:
    """What two files say of one fact; of nodes, those of the same two values are one difference."""

    found: dict[tuple[str, str, str, str, str], list[str]] = field(default_factory=dict)

    def either(self, name: str, fact: str, ours: tuple[str, T | None], theirs: tuple[str, T | None]) -> T | None:
        """The value that is known; of two that differ, ours."""
        (our_file, one), (their_file, other) = ours, theirs
        if one is None or other is None or one == other:
            return other if one is None else one
        self.found.setdefault((fact, str(one), our_file, str(other), their_file), []).append(name)
        return one

    def told(self) -> tuple[str, ...]:
        """In words."""
        return tuple(
            f"{fact} of {folded(names, _WIDTH)}: {one} ({file}), but {other} ({their})"
            for (fact, one, file, other, their), names in self.found.items()
        )


def merged(sources: Sequence[Source]) -> tuple[Batch, tuple[str, ...]]:
    """All of one scheduler, and the contradictions, in which the first source counts."""
    first, *rest = sources
    total, files, differences = first.batch, first.files, _Differences()
    for source in rest:
        batch, name = source.batch, "the scheduler"
        context = differences, files, source.files
        total = replace(
            total,
            version=differences.either(name, "version", (files, total.version), (source.files, batch.version)),
            cluster=differences.either(name, "cluster", (files, total.cluster), (source.files, batch.cluster)),
            nodes=_by_name(total.nodes, batch.nodes, partial(_node, *context)),
            queues=_by_name(total.queues, batch.queues, partial(_queue, *context)),
            policies=total.policies or batch.policies,
            srun_mpi=total.srun_mpi or batch.srun_mpi,
            remarks=tuple(dict.fromkeys((*total.remarks, *batch.remarks))),
        )
        files = f"{files}, {source.files}"
    return total, differences.told()


N = TypeVar("N", ProbedNode, Queue)


def _by_name(ours: Iterable[N], theirs: Iterable[N], together: Callable[[N, N], N]) -> tuple[N, ...]:
    found = {one.name: one for one in ours}
    for other in theirs:
        found[other.name] = together(found[other.name], other) if other.name in found else other
    return tuple(found.values())


def _node(differences: _Differences, file: str, their: str, one: ProbedNode, other: ProbedNode) -> ProbedNode:
    values: dict[str, Any] = {
        each.name: differences.either(
            one.name,
            each.name,
            (file, getattr(one.hardware, each.name)),
            (their, getattr(other.hardware, each.name)),
        )
        for each in fields(Hardware)
    }
    return replace(
        one,
        hardware=Hardware(**values),
        features=one.features | other.features,
        queues=tuple(dict.fromkeys((*one.queues, *other.queues))),
        arch=differences.either(one.name, "arch", (file, one.arch), (their, other.arch)),
    )


def _queue(differences: _Differences, file: str, their: str, one: Queue, other: Queue) -> Queue:
    wall = differences.either(one.name, "max_wall", (file, _seconds(one.max_wall)), (their, _seconds(other.max_wall)))
    return replace(
        one,
        is_default=one.is_default or other.is_default,
        min_nodes=max(one.min_nodes, other.min_nodes),
        max_nodes=differences.either(one.name, "max_nodes", (file, one.max_nodes), (their, other.max_nodes)),
        max_wall=one.max_wall if wall == _seconds(one.max_wall) else other.max_wall,
        restricted=one.restricted or other.restricted,
        left_out=one.left_out or other.left_out,
        is_listed=one.is_listed or other.is_listed,
        remarks=tuple(dict.fromkeys((*one.remarks, *other.remarks))),
    )


def _seconds(wall: str | None) -> int | None:
    if wall is None:
        return None
    days, _, clock = wall.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds

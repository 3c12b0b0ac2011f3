"""A scheduler's queues as the partitions of a site: each refers to one kind of node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from hidl_cli.inputs.fields import SchedulerWord
from hidl_cli.site.node_kinds import Kind, simple, telling_feature, unique
from hidl_cli.site.probes.facts import Batch, Queue

MOST = 300  # partitions in one draft: no site has so many, and a file of more is of no use to people


@dataclass(frozen=True)
class Part:
    """A partition of the draft: ``key`` in the file, the scheduler's queue, its kind of node and the feature for it."""

    key: str
    queue: Queue
    kind: Kind
    constraint: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """All partitions of a draft, and what was left out of it, with the reasons."""

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]

    @property
    def default(self) -> str | None:
        """The key of the scheduler's default queue; of one with several kinds, that of its most frequent."""
        return next((part.key for part in self.parts if part.queue.is_default), None)

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of node that the partitions refer to, in their order."""
        return tuple(dict.fromkeys(part.kind for part in self.parts))


def parts(batch: Batch, kinds: Sequence[Kind]) -> Parts:
    """The partitions for a scheduler's queues.

    A queue with nodes of several kinds becomes a partition for each kind that a feature tells apart (``constraint``);
    where none does, the most frequent kind stands for all.
    """
    found: list[Part] = []
    left_out: list[str] = []
    members = {kind: Counter(queue for node in kind.nodes for queue in node.queues) for kind in kinds}
    for queue in batch.queues:
        here = sorted(
            (kind for kind in kinds if members[kind][queue.name]), key=lambda kind: -members[kind][queue.name]
        )
        reason = queue.left_out
        if reason is None and not here:
            reason = "no node of it is known"
        if reason is None and not _is_scheduler_word(queue.name):
            reason = "its name cannot stand in a job script"
        if reason is None and len(found) >= MOST:
            reason = f"there are more than {MOST}"
        if reason is not None:
            left_out.append(f"{queue.name}: {reason}")
            continue
        for part in _of(queue, here, {kind: members[kind][queue.name] for kind in here}):
            found.append(replace(part, key=unique(part.key, (one.key for one in found))))
    return Parts(tuple(found), tuple(left_out))


def _of(queue: Queue, here: Sequence[Kind], count: Mapping[Kind, int]) -> Iterator[Part]:
    key = simple(queue.name) or "queue"
    if len(here) == 1:
        yield Part(key, queue, here[0], remarks=queue.remarks)
        return
    features = {kind: telling_feature(kind, [other for other in here if other is not kind]) for kind in here}
    told = [kind for kind in here if (feature := features[kind]) and _is_scheduler_word(feature)]
    mixed = tuple(f"{count[kind]} nodes of {kind.name}" for kind in here)
    main = here[0]
    if main in told:
        yield Part(key, queue, main, features[main], (*queue.remarks, f"it holds {', '.join(mixed)}"))
    else:
        untold = f"it holds {', '.join(mixed)}, and no feature asks for those of {main.name} alone"
        yield Part(key, queue, main, None, (*queue.remarks, untold))
    for kind in told:
        if kind is not main:
            yield Part(f"{key}-{kind.name}"[:64], queue, kind, features[kind], (f"the {count[kind]} others of it",))


@cache
def _scheduler_words() -> TypeAdapter[str]:
    return TypeAdapter(SchedulerWord)


def _is_scheduler_word(text: str) -> bool:
    """Whether the schema of sites takes this as a queue's name or a feature."""
    try:
        _scheduler_words().validate_python(text)
    except ValidationError:
        return False
    return True

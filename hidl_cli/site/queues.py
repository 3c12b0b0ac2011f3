"""A scheduler's queues as the partitions of a site: each refers to one kind of node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from hidl_cli.inputs.fields import SchedulerWord
from hidl_cli.site.node_kinds import Kind, kinds, simple, telling_feature, unique
from hidl_cli.site.probes.facts import Batch, Hardware, Queue

MOST_PARTITIONS, MOST_KINDS = 300, 100  # in one draft: a file of more is of no use to people


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
    """All partitions of a draft, and what was left out of it, with the reasons; ``others``: kinds of no queue."""

    parts: tuple[Part, ...]
    left_out: tuple[str, ...]
    others: tuple[Kind, ...] = ()

    @property
    def default(self) -> str | None:
        """The key of the scheduler's default queue; of one with several kinds, that of its most frequent."""
        return next((part.key for part in self.parts if part.queue.is_default), None)

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of node that the partitions refer to, in their order, and the others."""
        return tuple(dict.fromkeys((*(part.kind for part in self.parts), *self.others)))


def parts(batch: Batch, unknown_nodes: Hardware | None = None) -> Parts:
    """The partitions for a scheduler's queues.

    ``unknown_nodes``: where the scheduler tells of no node, what is known of those that all its queues then have. A
    queue with nodes of several kinds becomes a partition for each kind that a feature tells apart (``constraint``);
    where none does, the most frequent kind stands for all.
    """
    wanted = {queue.name for queue in batch.queues if queue.left_out is None}
    known = kinds([node for node in batch.nodes if wanted & set(node.queues)])[:MOST_KINDS]
    members = {kind: Counter(queue for node in kind.nodes for queue in node.queues) for kind in known}
    found: list[Part] = []
    left_out: list[str] = []
    for queue in batch.queues:
        count = {kind: members[kind][queue.name] for kind in known if members[kind][queue.name]}
        reason = queue.left_out
        if unknown_nodes is not None:
            count = {Kind("node", unknown_nodes, (), frozenset()): 1}
        if reason is None and not count:
            reason = "no node of it is known"
        if reason is None and not _is_scheduler_word(queue.name):
            reason = "its name cannot stand in a job script"
        if reason is None and len(found) >= MOST_PARTITIONS:
            reason = f"there are more than {MOST_PARTITIONS}"
        if reason is not None:
            left_out.append(f"{queue.name}: {reason}")
            continue
        these = list(_of(queue, count))
        for part in these:
            found.append(replace(part, key=unique(part.key, (one.key for one in found))))
        unasked = [f"{count[kind]} x {kind.name}" for kind in count if kind not in [part.kind for part in these]]
        if unasked:
            left_out.append(f"{queue.name}: no feature asks for {', '.join(unasked)} alone")
    return Parts(tuple(found), tuple(left_out), () if batch.queues else kinds(batch.nodes)[:MOST_KINDS])


def _of(queue: Queue, count: Mapping[Kind, int]) -> Iterator[Part]:
    """The partitions of one queue, which has so many nodes of each kind."""
    key = simple(queue.name) or "queue"
    main = max(count, key=lambda kind: count[kind])
    if len(count) == 1:
        yield Part(key, queue, main, remarks=queue.remarks)
        return
    features = {kind: telling_feature(kind, [other for other in count if other is not kind]) for kind in count}
    asked = {kind: feature for kind, feature in features.items() if feature and _is_scheduler_word(feature)}
    mixed = f"its nodes: {', '.join(f'{count[kind]} x {kind.name}' for kind in count)}"
    if main not in asked:
        mixed += f"; no feature asks for {main.name} alone"
    yield Part(key, queue, main, asked.get(main), (*queue.remarks, mixed))
    for kind, feature in asked.items():
        if kind is not main:
            here = f"the {count[kind]} x {kind.name} of {queue.name}"
            yield Part(f"{key}-{kind.name}"[:60], queue, kind, feature, (here,))


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

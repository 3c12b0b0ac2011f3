"""From nodes to kinds of nodes: those with the same cores, memory, GPUs and features are one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ClusterShell.NodeSet import NodeSet

from hidl_cli.site.probes.facts import Hardware, ProbedNode

_ALIKE = 1.03  # memory that differs by less is what firmware keeps for itself, not another kind of node
_PLACES = 3  # a feature of which there are more variants by number (rack1, rack2, ...) says where a node is, not what
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
_MOST_CLASSES = 8  # of the same hardware, by their features; beyond, features say something else


@dataclass(frozen=True)
class Kind:
    """Nodes of one kind, by their names; ``features``: those that all of them have."""

    name: str
    hardware: Hardware
    nodes: tuple[ProbedNode, ...]
    features: frozenset[str]

    @property
    def arch(self) -> str | None:
        """The architecture of those that have been up, if they agree."""
        known = {node.arch for node in self.nodes if node.arch}
        return known.pop() if len(known) == 1 else None


def kinds(nodes: Sequence[ProbedNode]) -> tuple[Kind, ...]:
    """The kinds of nodes, the most frequent first, each with a name of its own."""
    found = [kind for alike in _by_hardware(nodes) for kind in _by_features(alike)]
    found.sort(key=lambda kind: -len(kind.nodes))
    return tuple(replace(kind, name=name) for kind, name in zip(found, _names(found), strict=True))


def telling_feature(kind: Kind, others: Iterable[Kind]) -> str | None:
    """A feature that all nodes of this kind have, and none of the others."""
    elsewhere = frozenset().union(*(node.features for other in others for node in other.nodes))
    return min(kind.features - elsewhere, key=lambda feature: (len(feature), feature), default=None)


def simple(text: str) -> str:
    """``text`` as a site file's names are: lower-case letters, digits and . _ -; possibly empty."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:48].rstrip("-._")


def unique(name: str, taken: Iterable[str]) -> str:
    """The name, with a number after it where it is taken."""
    taken, number, candidate = set(taken), 2, name
    while candidate in taken:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _by_hardware(nodes: Sequence[ProbedNode]) -> Iterator[list[ProbedNode]]:
    """Nodes of the same hardware; of memories that are nearly the same, the smallest counts.

    Of nodes of which nothing is known, those that share a queue are taken for the same.
    """
    yield from _by_queues([node for node in nodes if node.hardware == Hardware()])
    nodes = [node for node in nodes if node.hardware != Hardware()]
    groups: dict[Hardware, list[ProbedNode]] = {}
    for node in nodes:
        groups.setdefault(replace(node.hardware, memory_mib=None), []).append(node)
    for hardware, group in groups.items():
        sizes = sorted({node.hardware.memory_mib for node in group if node.hardware.memory_mib})
        smallest: dict[int | None, int | None] = {None: None}
        first = 0
        for size in sizes:
            first = first if first and size <= first * _ALIKE else size
            smallest[size] = first
        classes: dict[int | None, list[ProbedNode]] = {}
        for node in group:
            classes.setdefault(smallest[node.hardware.memory_mib or None], []).append(node)
        for memory, alike in classes.items():
            yield [replace(node, hardware=replace(hardware, memory_mib=memory)) for node in alike]


def _by_queues(nodes: Sequence[ProbedNode]) -> Iterator[list[ProbedNode]]:
    groups: list[tuple[set[str], list[ProbedNode]]] = []
    for queues in dict.fromkeys(node.queues for node in nodes):
        sharing = [group for group in groups if group[0] & {*queues}]
        its = [*(node for group in sharing for node in group[1]), *(node for node in nodes if node.queues == queues)]
        groups = [group for group in groups if group not in sharing]
        groups.append(({*queues}.union(*(group[0] for group in sharing)), its))
    yield from (group[1] for group in groups)


def _by_features(nodes: list[ProbedNode]) -> Iterator[Kind]:
    variants: dict[str, set[str]] = {}
    for feature in frozenset().union(*(node.features for node in nodes)):
        variants.setdefault(re.sub(r"\d+", "#", feature), set()).add(feature)
    places = {one for stem, ones in variants.items() if "#" in stem and len(ones) > _PLACES for one in ones}
    classes: dict[frozenset[str], list[ProbedNode]] = {}
    for node in nodes:
        classes.setdefault(node.features - places, []).append(node)
    if len(classes) > _MOST_CLASSES:
        classes = {frozenset.intersection(*classes): nodes}
    for features, alike in classes.items():
        yield Kind("", alike[0].hardware, tuple(alike), features)


def _names(found: Sequence[Kind]) -> list[str]:
    """A name for each: its GPU's model, or ``cpu``; where several share that, with what distinguishes them."""
    bases = [_base(kind) for kind in found]
    shared = Counter(bases)
    names: list[str] = []
    for kind, base in zip(found, bases, strict=True):
        name = base
        if shared[base] > 1:
            rivals = [other for other, its in zip(found, bases, strict=True) if its == base and other is not kind]
            if word := simple(_difference(kind, rivals) or ""):
                name = f"{base}-{word}"
        names.append(unique(name, names))
    return names


def _base(kind: Kind) -> str:
    hardware = kind.hardware
    if hardware == Hardware() and kind.nodes and len(kind.nodes[0].queues) > 0:
        return simple(kind.nodes[0].queues[0]) or "node"
    if hardware.gpus:
        model = hardware.gpu_model or ""
        return simple(model) if model and "," not in model and simple(model) else "gpu"
    return "node" if hardware.gpus is None else "cpu"


def _difference(kind: Kind, rivals: Sequence[Kind]) -> str | None:
    """What tells a kind from those that would have the same name: a feature, its memory, cores or GPUs; else the
    feature that the fewest of them have."""
    if feature := telling_feature(kind, rivals):
        return feature
    for key, form in (("memory_mib", "{:.0f}g"), ("cores", "{}c"), ("gpus", "{}gpus")):
        value = getattr(kind.hardware, key)
        if value is not None and all(getattr(rival.hardware, key) != value for rival in rivals):
            return form.format(value / 1024 if key == "memory_mib" else value)
    shared = {feature: sum(feature in rival.features for rival in rivals) for feature in sorted(kind.features)}
    rarest = min(shared, key=lambda feature: shared[feature], default=None)
    return rarest if rarest is not None and shared[rarest] < len(rivals) else None


def folded(names: Sequence[str], width: int) -> str:
    """``gpu[001-032]``, cut off after ``width`` characters."""
    plain = [name for name in names if _PLAIN_NAME.fullmatch(name)]
    odd = [name for name in names if not _PLAIN_NAME.fullmatch(name)]
    text = ",".join([str(NodeSet.fromlist(plain)), *odd] if plain else odd)
    return text if len(text) <= width else f"{text[:width]}..."

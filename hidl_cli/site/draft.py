"""Draft a site file from probe results. Unknown values are null, and comments name the sources of all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from ClusterShell.NodeSet import NodeSet
from pydantic import TypeAdapter, ValidationError

from hidl_cli import documents
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.inputs import overlay
from hidl_cli.inputs.check import MAX_REGEX, PATTERNS, Name, SchedulerWord
from hidl_cli.inputs.overlay import KindName
from hidl_cli.launchers import LAUNCHERS, fitting
from hidl_cli.mpi import TRAITS
from hidl_cli.site.probes.facts import Hardware, ProbedLibrary, ProbedNode, Queue, SchedulerFacts
from hidl_cli.site.probes.host import Cards, architecture
from hidl_cli.site.probes.survey import SurveyResult
from hidl_cli.site.yamledit import YamlItem, document

_ALIKE = 1.03  # maximum ratio of memory sizes within a kind of node; firmware reserves different amounts
_PLACES = 3  # a feature that has more numbered variants (rack1, rack2, ...) is a location, not a kind of node
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
_MOST_CLASSES = 8  # if features divide equal nodes into more kinds than this, they do not describe kinds of node


@dataclass(frozen=True)
class NodeKind:
    """Nodes of the same kind. ``features`` contains the features that they all share."""

    name: str
    hardware: Hardware
    nodes: tuple[ProbedNode, ...]
    features: frozenset[str]

    @property
    def arch(self) -> str | None:
        """The nodes' architecture, if known and the same for all."""
        known = {node.arch for node in self.nodes if node.arch}
        return known.pop() if len(known) == 1 else None


def kinds(nodes: Sequence[ProbedNode]) -> tuple[NodeKind, ...]:
    """Group nodes into kinds with unique names, the most frequent kind first."""
    found = [kind for alike in _by_hardware(nodes) for kind in _by_features(alike)]
    found.sort(key=lambda kind: -len(kind.nodes))
    return tuple(replace(kind, name=name) for kind, name in zip(found, _names(found), strict=True))


def telling_feature(kind: NodeKind, others: Iterable[NodeKind]) -> str | None:
    """Return a feature that all nodes of this kind, and no others, have."""
    elsewhere = frozenset().union(*(node.features for other in others for node in other.nodes))
    return min(kind.features - elsewhere, key=lambda feature: (len(feature), feature), default=None)


def simple(text: str) -> str:
    """Convert text to a name for site files: lower-case letters, digits and ``. _ -``. The result may be empty."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:48].rstrip("-._")


def unique(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number appended if it is taken."""
    taken, number, candidate = set(taken), 2, name
    while candidate in taken:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def _by_hardware(nodes: Sequence[ProbedNode]) -> Iterator[list[ProbedNode]]:
    """Group nodes by hardware, rounding similar amounts of memory down to the smallest of them.

    Nodes with unknown hardware are grouped if they share a queue.
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


def _by_features(nodes: list[ProbedNode]) -> Iterator[NodeKind]:
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
        yield NodeKind("", alike[0].hardware, tuple(alike), features)


def _names(found: Sequence[NodeKind]) -> list[str]:
    """Return a name for each kind of node: its GPU model or ``cpu``, with a suffix if this name is not unique."""
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


def _base(kind: NodeKind) -> str:
    hardware = kind.hardware
    if hardware == Hardware() and kind.nodes and len(kind.nodes[0].queues) > 0:
        return simple(kind.nodes[0].queues[0]) or "node"
    if hardware.gpus:
        model = hardware.gpu_model or ""
        return simple(model) if model and "," not in model and simple(model) else "gpu"
    return "node" if hardware.gpus is None else "cpu"


def _difference(kind: NodeKind, rivals: Sequence[NodeKind]) -> str | None:
    """Return the property that distinguishes a kind from others with the same name.

    This is a unique feature, amount of memory, or number of cores or GPUs, or else the feature that the fewest rivals
    have.
    """
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
    """Combine names (``gpu[001-032]``), and truncate the text after ``width`` characters."""
    plain = [name for name in names if _PLAIN_NAME.fullmatch(name)]
    odd = [name for name in names if not _PLAIN_NAME.fullmatch(name)]
    text = ",".join([str(NodeSet.fromlist(plain)), *odd] if plain else odd)
    return text if len(text) <= width else f"{text[:width]}..."


# Convert scheduler queues to partitions, each with one kind of node.


MOST_PARTITIONS, MOST_KINDS = 300, 100  # limits that keep a draft short enough to edit


@dataclass(frozen=True)
class DraftPartition:
    """A partition in the draft. ``constraint`` is the feature that selects its kind of node."""

    key: str
    queue: Queue
    kind: NodeKind
    constraint: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DraftPartitions:
    """A draft's partitions, and the queues and nodes that were left out, with reasons.

    If the scheduler lists no queues, ``others`` contains the kinds of node.
    """

    parts: tuple[DraftPartition, ...]
    left_out: tuple[str, ...]
    others: tuple[NodeKind, ...] = ()

    @property
    def default(self) -> str | None:
        """The key of the default queue's partition.

        If the queue has several partitions, this is the one for its most frequent kind of node.
        """
        return next((part.key for part in self.parts if part.queue.is_default), None)

    def kinds(self) -> tuple[NodeKind, ...]:
        """Return the partitions' kinds of node, followed by the kinds without a queue."""
        return tuple(dict.fromkeys((*(part.kind for part in self.parts), *self.others)))


def parts(batch: SchedulerFacts, unknown_nodes: Hardware | None = None) -> DraftPartitions:
    """Convert scheduler queues to partitions.

    A queue with several kinds of node becomes one partition for each kind that a feature (``constraint``) selects. If
    there is no such feature, the most frequent kind represents the whole queue. If the scheduler lists no nodes, all
    queues are assumed to have the hardware ``unknown_nodes``.
    """
    wanted = {queue.name for queue in batch.queues if queue.left_out is None}
    known = kinds([node for node in batch.nodes if wanted & set(node.queues)])[:MOST_KINDS]
    members = {kind: Counter(queue for node in kind.nodes for queue in node.queues) for kind in known}
    found: list[DraftPartition] = []
    left_out: list[str] = []
    for queue in batch.queues:
        count = {kind: members[kind][queue.name] for kind in known if members[kind][queue.name]}
        reason = queue.left_out
        if unknown_nodes is not None:
            count = {NodeKind("node", unknown_nodes, (), frozenset()): 1}
        if reason is None and not count:
            reason = "none of its nodes is known"
        if reason is None and not _is_scheduler_word(queue.name):
            reason = "its name is not valid in a job script"
        if reason is None and len(found) >= MOST_PARTITIONS:
            reason = f"more than {MOST_PARTITIONS} partitions"
        if reason is not None:
            left_out.append(f"{queue.name}: {reason}")
            continue
        these = list(_of(queue, count))
        for part in these:
            found.append(replace(part, key=unique(part.key, (one.key for one in found))))
        others = [f"{count[kind]} x {kind.name}" for kind in count if kind not in [part.kind for part in these]]
        if others:
            left_out.append(f"{queue.name}: no feature selects only {', '.join(others)}")
    return DraftPartitions(tuple(found), tuple(left_out), () if batch.queues else kinds(batch.nodes)[:MOST_KINDS])


def _of(queue: Queue, count: Mapping[NodeKind, int]) -> Iterator[DraftPartition]:
    """Return a queue's partitions, given its number of nodes of each kind."""
    key = simple(queue.name) or "queue"
    main = max(count, key=lambda kind: count[kind])
    if len(count) == 1:
        yield DraftPartition(key, queue, main, remarks=queue.remarks)
        return
    features = {kind: telling_feature(kind, [other for other in count if other is not kind]) for kind in count}
    selectable = {kind: feature for kind, feature in features.items() if feature and _is_scheduler_word(feature)}
    mixed = f"its nodes: {', '.join(f'{count[kind]} x {kind.name}' for kind in count)}"
    if main not in selectable:
        mixed += f"; no feature selects only {main.name}"
    yield DraftPartition(key, queue, main, selectable.get(main), (*queue.remarks, mixed))
    for kind, feature in selectable.items():
        if kind is not main:
            here = f"the {count[kind]} x {kind.name} of {queue.name}"
            yield DraftPartition(f"{key}-{kind.name}"[:60], queue, kind, feature, (here,))


@cache
def _scheduler_words() -> TypeAdapter[str]:
    return TypeAdapter(SchedulerWord)


def _is_scheduler_word(text: str) -> bool:
    """Return whether the site schema allows this name for a queue or feature."""
    try:
        _scheduler_words().validate_python(text)
    except ValidationError:
        return False
    return True


# Facts missing from saved output, and the commands that print them.


Topic = Literal["scheduler", "nodes", "queues", "processor", "GPUs", "interconnect", "MPI", "launchers"]

_ON_LOGIN, _ON_NODE = "on a login node", "on a compute node"
_SCHEDULER = (
    "`scontrol show config > scontrol-show-config.txt` (Slurm), `lsid > lsid.txt` (LSF), "
    "`qstat -Bf > qstat-Bf.txt` (PBS) or "
    f"`flux resource list > flux-resource-list.txt` (Flux) {_ON_LOGIN}"
)
_GPUS = (
    "`nvidia-smi -L > nvidia-smi.txt`, `rocm-smi --showproductname > rocm-smi.txt` or "
    f"`xpu-smi discovery > xpu-smi.txt` {_ON_NODE} with GPUs"
)
_MPI = (
    "`module avail > module-avail.txt 2>&1`, `mpichversion > mpichversion.txt` or "
    f"`ompi_info > ompi_info.txt` {_ON_LOGIN}"
)
_NODES = {
    "slurm": "`scontrol show node > scontrol-show-node.txt`",
    "lsf": "`lshosts -w > lshosts-w.txt` and `bhosts -w > bhosts-w.txt`",
    "pbs": "`pbsnodes -a > pbsnodes-a.txt`",
    "flux": "`flux resource list > flux-resource-list.txt`",
}
_QUEUES = {
    "slurm": "`scontrol show partition > scontrol-show-partition.txt`",
    "lsf": "`bqueues -l > bqueues-l.txt`",
    "pbs": "`qstat -Qf > qstat-Qf.txt`",
    "flux": "`flux queue list > flux-queue-list.txt`",
}


def open_questions(found: SurveyResult) -> dict[Topic, str]:
    """Return the facts missing from saved output, with the commands that record them.

    The result is empty if the machine itself was probed.
    """
    if not found.read:
        return {}
    questions: dict[Topic, str] = {}
    batch = found.batch
    if batch is None:
        questions["scheduler"] = _SCHEDULER
    else:
        if not any(node.hardware.cores or node.hardware.processors for node in batch.nodes):
            questions["nodes"] = f"{_NODES[batch.scheduler]} {_ON_LOGIN}"
        if not batch.queues:
            questions["queues"] = f"{_QUEUES[batch.scheduler]} {_ON_LOGIN}"
    if not found.machine.cpu:
        questions["processor"] = f"`lscpu > lscpu.txt` {_ON_NODE}"
    if not found.cards and not (batch and any(node.hardware.gpus is not None for node in batch.nodes)):
        questions["GPUs"] = _GPUS
    if found.interconnect is None:
        questions["interconnect"] = f"`ibstat > ibstat.txt` {_ON_NODE}"
    if not found.libraries:
        questions["MPI"] = _MPI
    if not found.launchers and (batch is None or batch.scheduler == "lsf"):
        questions["launchers"] = f"`mpirun --version > mpirun.txt` {_ON_LOGIN}, or add the launcher"
    return questions


def sentence(topic: Topic, how: str) -> str:
    """Format a missing fact: ``processor: not recorded; run ...``."""
    return f"{topic}: not recorded; run {how}"


_MOST_SHAPES, _LONGEST_PATTERN = 6, 500
_OWN_LAUNCHERS = {"slurm": "srun", "flux": "flux"}
_EXAMPLES = 60  # maximum length of node names in a comment


@dataclass(frozen=True)
class SiteDraft:
    """The name and text of a drafted site file.

    Attributes:
        remarks: Notes for the user.
        read: Saved files that were read, with the facts found in each.
        open: Missing facts, with the commands that record them.
    """

    name: str
    text: str
    remarks: tuple[str, ...]
    read: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def default_name(found: SurveyResult) -> str:
    """Return the cluster's name or, if it is unknown, the host's name, as a site name."""
    cluster = found.batch.cluster if found.batch else None
    return simple(cluster or "") or simple(found.hostname.partition(".")[0]) or "this-machine"


def draft(found: SurveyResult, name: str) -> SiteDraft:
    """Draft a site file from probe results. The file of a machine without a scheduler extends ``local``."""
    questions = open_questions(found)
    remarks = found.remarks
    if found.batch is None and not found.read:
        items = list(_workstation(found, name))
        what = "a machine without a scheduler"
    elif found.batch is None:
        nodes = NodeKind("node", found.unknown_nodes or Hardware(), (), frozenset())
        known = nodes.hardware != Hardware() or found.machine.cpu or found.machine.arch
        items = list(_cluster(found, None, DraftPartitions((), (), (nodes,) if known else ()), name, questions))
        what = "scheduler unknown"
    else:
        grouped = parts(found.batch, found.unknown_nodes)
        items = list(_cluster(found, found.batch, grouped, name, questions))
        remarks = (*found.batch.remarks, *found.remarks, *(f"left out: queue {one}" for one in grouped.left_out))
        what = f"{SYSTEMS[found.batch.scheduler].title} {found.batch.version or '(version unknown)'}"
    open_ = tuple(sentence(topic, how) for topic, how in questions.items())
    head = [
        f"Drafted by `hidl site new` {_place(found)}: {what}.",
        "Comments name the sources of the values below them; null means unknown. Fill in and correct what you can:",
        f"`hidl site check {name}` lists the remaining unknown values.",
        *(f"- read {one}" for one in found.read),
        *(f"- {remark}" for remark in remarks),
    ]
    return SiteDraft(name, document(items, head=head), tuple(remarks), found.read, open_)


def _place(found: SurveyResult) -> str:
    return "from saved outputs" if found.read else f"on {found.hostname}"


def _workstation(found: SurveyResult, name: str) -> Iterator[YamlItem]:
    yield YamlItem("name", name)
    yield YamlItem("title", f"{found.hostname}, drafted by hidl")
    yield YamlItem("extends", "local")
    yield YamlItem("match", (YamlItem("hostname", literal(found.hostname)),), "this host's name")
    yield from _interconnect(found)
    own = _gpu_facts(found.cards, found.cards.model if found.cards else None)
    if own:
        cards = found.cards
        gpus = f"{cards.source}: {cards.count} x {cards.model}" if cards else ""
        why = f"cores and memory are detected at run time; {gpus}"
        yield YamlItem("node_types", (YamlItem("host", (YamlItem("detect", True), *own), why),))
    yield from _mpi(found.libraries, ("mpiexec",), ())


def _cluster(
    found: SurveyResult,
    batch: SchedulerFacts | None,
    grouped: DraftPartitions,
    name: str,
    questions: Mapping[Topic, str],
) -> Iterator[YamlItem]:
    scheduler = SYSTEMS[batch.scheduler].title if batch else "the scheduler"
    sources = ", ".join(batch.sources) if batch else ""

    def missing(*topics: Topic) -> str:
        return "; ".join(sentence(topic, questions[topic]) for topic in topics if topic in questions)

    yield YamlItem("name", name)
    yield YamlItem("title", f"Cluster {(batch.cluster if batch else None) or name}, drafted by hidl")
    yield YamlItem("sources", list(found.read) if found.read else [f"{sources} (on {found.hostname})"])
    if batch:
        yield from _match(found.hostname, batch)
    if found.interconnect or not found.read:
        yield from _interconnect(found)
    else:
        yield YamlItem("interconnect", None, missing("interconnect"))
    yield YamlItem("scheduler", batch.scheduler if batch else None, missing("scheduler"))
    launchers, why = _launchers(found, batch)
    yield YamlItem("launchers", launchers, why or missing("launchers"))
    types = tuple(_node_type(kind, found, scheduler) for kind in grouped.kinds())
    yield YamlItem("node_types", types, missing("nodes", "processor", "GPUs"))
    partitions = tuple(_partition(part) for part in grouped.parts)
    yield YamlItem("partitions", partitions, missing("queues"))
    yield YamlItem(
        "default_partition", grouped.default, f"{scheduler}'s default" if grouped.default or not found.read else ""
    )
    libraries = list(_mpi(found.libraries, launchers, batch.srun_mpi if batch else ()))
    yield from libraries
    if not libraries and "MPI" in questions:
        yield YamlItem("mpi", (), missing("MPI"))
    if batch and batch.policies:
        policies = tuple(YamlItem(policy.key, policy.value, policy.why) for policy in batch.policies)
        yield YamlItem("policies", policies, "rules for the options of job scripts; keys not listed have defaults")
    if found.installed:
        installed = tuple(
            YamlItem(one.package, (YamlItem("version", one.version), YamlItem("prefix", one.prefix)), one.source)
            for one in found.installed
        )
        yield YamlItem("externals", installed)


def _launchers(found: SurveyResult, batch: SchedulerFacts | None) -> tuple[list[str], str]:
    """Return the launchers and the places where they were found."""
    launchers = [launcher for launcher in LAUNCHERS if launcher in found.launchers]
    places = ", ".join(dict.fromkeys(found.launchers[launcher] for launcher in launchers))
    why = f"shown by {places}" if found.read and places else "" if found.read else f"on the PATH: {places or 'none'}"
    scheduler = batch.scheduler if batch else ""
    own = _OWN_LAUNCHERS.get(scheduler)
    if found.read and own and own not in launchers:
        launchers.insert(0, own)
        why = f"{why}; {own} is part of the scheduler".removeprefix("; ")
    if "mpiexec" not in launchers and scheduler in ("slurm", "pbs") and "pals" not in launchers:
        launchers.append("mpiexec")
        why = f"{why}; mpiexec is part of hidl's stacks".removeprefix("; ")
    return launchers, why


def _match(hostname: str, batch: SchedulerFacts) -> Iterator[YamlItem]:
    conditions = []
    if batch.cluster:
        why = f"name of the cluster according to {SYSTEMS[batch.scheduler].title}"
        conditions.append(YamlItem("cluster", literal(batch.cluster), why))
    why = "names of this host and the nodes, with any digits"
    if not hostname:
        why = "names of the nodes, with any digits; those of login nodes are not recorded"
    if pattern := host_pattern(hostname, [node.name for node in batch.nodes]):
        conditions.append(YamlItem("hostname", pattern, why))
    if valid := tuple(each for each in conditions if len(str(each.value)) <= MAX_REGEX):
        yield YamlItem("match", valid)


def host_pattern(hostname: str, nodes: Sequence[str]) -> str | None:
    """Return a regular expression for the names of this host and the compute nodes, whatever digits these contain.

    Returns None if the names have too many different forms.
    """
    short, _, domain = hostname.partition(".")
    if not hostname and not nodes:
        return None
    if not nodes:
        return _shape(short) + (f"\\.{literal(domain)}" if domain else "")
    shapes = list(dict.fromkeys(_shape(name) for name in (short, *nodes) if name))
    if len(shapes) > _MOST_SHAPES or sum(map(len, shapes)) > _LONGEST_PATTERN:
        return None
    return (shapes[0] if len(shapes) == 1 else f"({'|'.join(shapes)})") + r"(\..+)?"


def literal(text: str) -> str:
    """Escape text for a regular expression, but only where necessary, unlike ``re.escape``."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def _shape(name: str) -> str:
    return re.sub(r"[0-9]+", r"\\d+", literal(name))


def _interconnect(found: SurveyResult) -> Iterator[YamlItem]:
    fact = found.interconnect
    if fact:
        yield YamlItem("interconnect", fact.value, fact.source)
    elif found.batch:
        yield YamlItem("interconnect", None, f"no fabric adapter was found on {found.hostname}")


def _node_type(kind: NodeKind, found: SurveyResult, scheduler: str) -> YamlItem:
    hardware = kind.hardware
    names = [node.name for node in kind.nodes]
    why = f"{len(names)} {'node' if len(names) == 1 else 'nodes'}: {folded(names, _EXAMPLES)}"
    if not names:
        why = "the number of nodes and their differences are not recorded"
    here = with_cards = found.hostname.partition(".")[0] in names
    if found.read:
        here, with_cards = (not names or not nodes.isdisjoint(names) for nodes in (found.described, found.with_cards))
    if hardware.processors:
        why += f"; {hardware.processors} processors each (cores or threads)"
    if kind.features:
        why += f"; features {','.join(sorted(kind.features))}"
    facts = [
        YamlItem("cpu", found.machine.cpu if here else None),
        YamlItem("arch", kind.arch or ((found.machine.arch or None) if here else None)),
        YamlItem("sockets", hardware.sockets),
        YamlItem("cores", hardware.cores),
        YamlItem("threads_per_core", hardware.threads_per_core),
        YamlItem("memory_gib", round(hardware.memory_mib / 1024, 1) or None if hardware.memory_mib else None),
        YamlItem("gpus", hardware.gpus),
    ]
    if hardware.gpus:
        own = found.cards.model if with_cards and found.cards else None
        model = own or hardware.gpu_model
        note = f"name used by {scheduler}" if model and model == hardware.gpu_model != own else ""
        facts.append(YamlItem("gpu_model", model, note))
        facts += _gpu_facts(found.cards if with_cards else None, model)
    return YamlItem(kind.name, (*facts, YamlItem("count", len(names) or None)), why)


def _gpu_facts(cards: Cards | None, model: str | None) -> list[YamlItem]:
    """Return the architecture and memory of this host's GPUs, or the values implied by the model name."""
    arch = (cards.arch if cards else None) or architecture(model)
    memory = cards.memory_gib if cards else None
    facts = [YamlItem("gpu_arch", arch), YamlItem("gpu_memory_gib", memory)]
    return [fact for fact in facts if fact.value is not None]


def _partition(part: DraftPartition) -> YamlItem:
    queue = part.queue
    facts = [YamlItem("node_type", part.kind.name)]
    if part.key != queue.name:
        facts.append(YamlItem("queue", queue.name))
    if part.constraint:
        facts.append(YamlItem("constraint", part.constraint))
    if queue.min_nodes > 1:
        facts.append(YamlItem("min_nodes", queue.min_nodes))
    facts += [YamlItem("max_nodes", queue.max_nodes), YamlItem("max_wall", queue.max_wall)]
    if queue.restricted:
        facts.append(YamlItem("restricted", True))
    return YamlItem(part.key, tuple(facts), "; ".join(part.remarks))


def _mpi(libraries: Sequence[ProbedLibrary], launchers: Sequence[str], offered: Sequence[str]) -> Iterator[YamlItem]:
    """Return the MPI libraries. ``offered`` contains the values that `srun --mpi=` accepts."""
    entries: list[YamlItem] = []
    for library in libraries:
        taken = [entry.key for entry in entries]
        key = simple(library.name) or library.family
        key = unique(f"{key}-module" if key in taken else key, taken)
        facts = [YamlItem("family", library.family), YamlItem("version", library.version)]
        if library.modules:
            facts.append(YamlItem("modules", list(library.modules)))
        if library.prefix:
            facts.append(YamlItem("prefix", library.prefix))
        started_by = [launcher for launcher in launchers if launcher in fitting(library.family)]
        if started_by and started_by != list(launchers):
            facts.append(YamlItem("launchers", started_by))
        traits = TRAITS[library.family]
        if traits.srun_mpi_tried and traits.srun_mpi in offered and "srun" in started_by:
            facts.append(YamlItem("srun_mpi", traits.srun_mpi))
        entries.append(YamlItem(key, tuple(facts), library.source))
    if entries:
        why = f"`srun --mpi=` accepts {', '.join(offered)}" if offered else ""
        yield YamlItem("mpi", tuple(entries), why)
        yield YamlItem("default_mpi", None, "null: each stack's own MPI library")


# Write drafts atomically, never over an existing file, and only if they are valid.


class HasText(Protocol):
    """Any kind of draft."""

    @property
    def text(self) -> str:
        """The text of the file."""


@dataclass(frozen=True)
class DraftTarget:
    """A draft's name and the file to write (None for standard output)."""

    name: str
    file: Path | None
    kind: KindName = "site"


def target(name: str | None, output: str | None, default: str, *, kind: KindName = "site") -> DraftTarget:
    """Choose a draft's name and file.

    Args:
        name: Name of the draft. None selects ``default``, with ``-draft`` appended if this would hide a file that comes
            with hidl or was installed by the administrators.
        output: File or directory to write, or ``-`` for standard output (default: the user's own directory).
        default: Name to use if none is given.
        kind: Kind of the drafted file.

    Raises ``UsageError`` for an invalid name, or if the file's name does not match.
    """
    if output is None or output == "-":
        chosen = name
        if chosen is None:
            known = {
                one.name for entry in overlay.list_all(kind) for one in (entry, *entry.shadows) if one.origin != "user"
            }
            chosen = f"{default}-draft" if default in known else default
        _require_name(chosen, kind)
        (_, directory), *_ = overlay.directories(kind)
        return DraftTarget(chosen, None if output == "-" else directory / f"{chosen}.yaml", kind)
    file = Path(output)
    chosen = file.stem if name is None else name
    _require_name(chosen, kind)
    if file.is_dir():
        return DraftTarget(chosen, file / f"{chosen}.yaml", kind)
    if file.name != f"{chosen}.yaml":
        raise UsageError(
            f"{kind} {chosen} cannot be written to {file.name}: hidl finds a {kind} by its file name",
            hint=f"use the file name {chosen}.yaml",
        )
    return DraftTarget(chosen, file, kind)


def require_free(target: DraftTarget, *, force: bool) -> None:
    """Raise ``UsageError`` if the file already exists, unless ``force`` is set."""
    if target.file is not None and (target.file.exists() or target.file.is_symlink()) and not force:
        raise UsageError(
            f"{target.file} already exists",
            hint=f"choose another {target.kind} name or --output, or overwrite it with --force",
        )


def write(draft: HasText, file: Path) -> None:
    """Write the draft atomically. Raises ``HidlError`` if that fails."""
    try:
        documents.write_text(file, draft.text)
    except OSError as error:
        raise HidlError(
            f"{file} cannot be written: {error.strerror or error}", hint="write it elsewhere with --output FILE"
        ) from error


def is_found(target: DraftTarget) -> bool:
    """Return whether hidl can find this file by its name."""
    return any(entry.path == target.file for entry in overlay.list_all(target.kind))


def hidden(target: DraftTarget) -> tuple[Path, ...]:
    """Return the files that the drafted file now hides because they have the same name."""
    entries = [entry for entry in overlay.list_all(target.kind) if entry.path == target.file]
    return tuple(below.path for entry in entries for below in entry.shadows)


def _require_name(name: str, kind: KindName) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        pattern = next(words for words in PATTERNS.values() if words.startswith("lower-case letters, digits, and"))
        raise UsageError(f"invalid {kind} name '{name}'", hint=f"use {pattern}") from None

"""A site file, drafted from what probes found: what they did not find is null, and each says where it is from."""

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
from hidl_cli.inputs.check import PATTERNS, Name, SchedulerWord
from hidl_cli.inputs.overlay import KindName
from hidl_cli.launchers import LAUNCHERS, fitting
from hidl_cli.mpi import TRAITS
from hidl_cli.site.probes.facts import Batch, Hardware, Library, ProbedNode, Queue
from hidl_cli.site.probes.host import Cards, architecture
from hidl_cli.site.probes.survey import Found
from hidl_cli.site.yamledit import Item, document

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


# A scheduler's queues as the partitions of a site: each refers to one kind of node.


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


# What outputs that were saved by hand leave open, and the command that would tell it.


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


def open_questions(found: Found) -> dict[Topic, str]:
    """What is not recorded, each with how to record it; none where a machine itself was asked."""
    if not found.read:
        return {}
    asked: dict[Topic, str] = {}
    batch = found.batch
    if batch is None:
        asked["scheduler"] = _SCHEDULER
    else:
        if not any(node.hardware.cores or node.hardware.processors for node in batch.nodes):
            asked["nodes"] = f"{_NODES[batch.scheduler]} {_ON_LOGIN}"
        if not batch.queues:
            asked["queues"] = f"{_QUEUES[batch.scheduler]} {_ON_LOGIN}"
    if not found.machine.cpu:
        asked["processor"] = f"`lscpu > lscpu.txt` {_ON_NODE}"
    if not found.cards and not (batch and any(node.hardware.gpus is not None for node in batch.nodes)):
        asked["GPUs"] = _GPUS
    if found.interconnect is None:
        asked["interconnect"] = f"`ibstat > ibstat.txt` {_ON_NODE}"
    if not found.libraries:
        asked["MPI"] = _MPI
    if not found.launchers and (batch is None or batch.scheduler == "lsf"):
        asked["launchers"] = f"`mpirun --version > mpirun.txt` {_ON_LOGIN}, or name what starts ranks"
    return asked


def sentence(topic: Topic, how: str) -> str:
    """``processor: not recorded; run ...``."""
    return f"{topic}: not recorded; run {how}"


_MOST_SHAPES, _LONGEST_PATTERN = 6, 500
_OWN_LAUNCHERS = {"slurm": "srun", "flux": "flux"}
_EXAMPLES = 60  # characters of folded node names in a comment


@dataclass(frozen=True)
class Draft:
    """A site file's name and text; ``remarks``: what people should know before they use it.

    ``read``: which saved output tells what; ``open``: what none of them tells, and the command that would.
    """

    name: str
    text: str
    remarks: tuple[str, ...]
    read: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def default_name(found: Found) -> str:
    """The cluster's name, else the host's, as site names are written."""
    cluster = found.batch.cluster if found.batch else None
    return simple(cluster or "") or simple(found.hostname.partition(".")[0]) or "this-machine"


def draft(found: Found, name: str) -> Draft:
    """The site file for what was found; a machine without a scheduler extends ``local``."""
    questions = open_questions(found)
    remarks = found.remarks
    if found.batch is None and not found.read:
        items = list(_workstation(found, name))
        what = "a machine without a scheduler"
    elif found.batch is None:
        alone = Kind("node", found.unknown_nodes or Hardware(), (), frozenset())
        known = alone.hardware != Hardware() or found.machine.cpu or found.machine.arch
        items = list(_cluster(found, None, Parts((), (), (alone,) if known else ()), name, questions))
        what = "scheduler unknown"
    else:
        grouped = parts(found.batch, found.unknown_nodes)
        items = list(_cluster(found, found.batch, grouped, name, questions))
        remarks = (*found.batch.remarks, *found.remarks, *(f"left out: queue {one}" for one in grouped.left_out))
        what = f"{SYSTEMS[found.batch.scheduler].title} {found.batch.version or '(version unknown)'}"
    open_ = tuple(sentence(topic, how) for topic, how in questions.items())
    head = [
        f"Drafted by `hidl site new` {_place(found)}: {what}.",
        "A comment says where what follows it is from; null is unknown. Fill in what you know, correct what is wrong:",
        f"`hidl site check {name}` lists what is still unknown.",
        *(f"- read {one}" for one in found.read),
        *(f"- {remark}" for remark in remarks),
    ]
    return Draft(name, document(items, head=head), tuple(remarks), found.read, open_)


def _place(found: Found) -> str:
    return "from saved outputs" if found.read else f"on {found.hostname}"


def _workstation(found: Found, name: str) -> Iterator[Item]:
    yield Item("name", name)
    yield Item("title", f"{found.hostname}, drafted by hidl")
    yield Item("extends", "local")
    yield Item("match", (Item("hostname", literal(found.hostname)),), "this host's name")
    yield from _interconnect(found)
    own = _gpu_facts(found.cards, found.cards.model if found.cards else None)
    if own:
        host = Item(
            "host", (Item("detect", True), *own), f"cores and memory are found at run time; {_of_of_draft(found.cards)}"
        )
        yield Item("node_types", (host,))
    yield from _mpi(found.libraries, ("mpiexec",), ())


def _cluster(
    found: Found, batch: Batch | None, grouped: Parts, name: str, questions: Mapping[Topic, str]
) -> Iterator[Item]:
    scheduler = SYSTEMS[batch.scheduler].title if batch else "the scheduler"
    sources = ", ".join(batch.sources) if batch else ""

    def asked(*topics: Topic) -> str:
        return "; ".join(sentence(topic, questions[topic]) for topic in topics if topic in questions)

    yield Item("name", name)
    yield Item("title", f"Cluster {(batch.cluster if batch else None) or name}, drafted by hidl")
    yield Item("sources", list(found.read) if found.read else [f"{sources} (on {found.hostname})"])
    if batch:
        yield from _match(found.hostname, batch)
    if found.interconnect or not found.read:
        yield from _interconnect(found)
    else:
        yield Item("interconnect", None, asked("interconnect"))
    yield Item("scheduler", batch.scheduler if batch else None, asked("scheduler"))
    launchers, why = _launchers(found, batch)
    yield Item("launchers", launchers, why or asked("launchers"))
    types = tuple(_node_type(kind, found, scheduler) for kind in grouped.kinds())
    yield Item("node_types", types, asked("nodes", "processor", "GPUs"))
    partitions = tuple(_partition(part) for part in grouped.parts)
    yield Item("partitions", partitions, asked("queues"))
    yield Item(
        "default_partition", grouped.default, f"{scheduler}'s default" if grouped.default or not found.read else ""
    )
    libraries = list(_mpi(found.libraries, launchers, batch.srun_mpi if batch else ()))
    yield from libraries
    if not libraries and "MPI" in questions:
        yield Item("mpi", (), asked("MPI"))
    if batch and batch.policies:
        policies = tuple(Item(policy.key, policy.value, policy.why) for policy in batch.policies)
        yield Item("policies", policies, "what a job script must, may and must not say: those not given have defaults")
    if found.installed:
        installed = tuple(
            Item(one.package, (Item("version", one.version), Item("prefix", one.prefix)), one.source)
            for one in found.installed
        )
        yield Item("externals", installed)


def _launchers(found: Found, batch: Batch | None) -> tuple[list[str], str]:
    """The launchers, and where each is from."""
    launchers = [launcher for launcher in LAUNCHERS if launcher in found.launchers]
    places = ", ".join(dict.fromkeys(found.launchers[launcher] for launcher in launchers))
    why = f"shown by {places}" if found.read and places else "" if found.read else f"on the PATH: {places or 'none'}"
    scheduler = batch.scheduler if batch else ""
    own = _OWN_LAUNCHERS.get(scheduler)
    if found.read and own and own not in launchers:
        launchers.insert(0, own)
        why = f"{why}; {own} is the scheduler's own".removeprefix("; ")
    if "mpiexec" not in launchers and scheduler in ("slurm", "pbs") and "pals" not in launchers:
        launchers.append("mpiexec")
        why = f"{why}; mpiexec comes with hidl's own stacks".removeprefix("; ")
    return launchers, why


def _match(hostname: str, batch: Batch) -> Iterator[Item]:
    conditions = []
    if batch.cluster:
        why = f"{SYSTEMS[batch.scheduler].title}'s name of the cluster"
        conditions.append(Item("cluster", literal(batch.cluster), why))
    why = "this host's name and the nodes', with any digits"
    if not hostname:
        why = "the nodes' names, with any digits; those of login nodes are not recorded"
    if pattern := host_pattern(hostname, [node.name for node in batch.nodes]):
        conditions.append(Item("hostname", pattern, why))
    if conditions:
        yield Item("match", tuple(conditions))


def host_pattern(hostname: str, nodes: Sequence[str]) -> str | None:
    """A regular expression for the names of this host and of the compute nodes, with any digits for theirs.

    None where the nodes' names have too many shapes for one.
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
    """A regular expression for exactly this text, as people write one."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def _shape(name: str) -> str:
    return re.sub(r"[0-9]+", r"\\d+", literal(name))


def _interconnect(found: Found) -> Iterator[Item]:
    fact = found.interconnect
    if fact:
        yield Item("interconnect", fact.value, fact.source)
    elif found.batch:
        yield Item("interconnect", None, f"no fabric adapter was found on {found.hostname}")


def _node_type(kind: Kind, found: Found, scheduler: str) -> Item:
    hardware = kind.hardware
    names = [node.name for node in kind.nodes]
    why = f"{len(names)} {'node' if len(names) == 1 else 'nodes'}: {folded(names, _EXAMPLES)}"
    if not names:
        why = "of how many nodes, and whether all are alike, is not recorded"
    here = with_cards = found.hostname.partition(".")[0] in names
    if found.read:
        here, with_cards = (not names or not nodes.isdisjoint(names) for nodes in (found.described, found.with_cards))
    if hardware.processors:
        why += f"; {hardware.processors} processors each (cores or threads)"
    if kind.features:
        why += f"; features {','.join(sorted(kind.features))}"
    facts = [
        Item("cpu", found.machine.cpu if here else None),
        Item("arch", kind.arch or ((found.machine.arch or None) if here else None)),
        Item("sockets", hardware.sockets),
        Item("cores", hardware.cores),
        Item("threads_per_core", hardware.threads_per_core),
        Item("memory_gib", round(hardware.memory_mib / 1024, 1) or None if hardware.memory_mib else None),
        Item("gpus", hardware.gpus),
    ]
    if hardware.gpus:
        own = found.cards.model if with_cards and found.cards else None
        model = own or hardware.gpu_model
        facts.append(
            Item("gpu_model", model, f"{scheduler} calls it so" if model and model == hardware.gpu_model != own else "")
        )
        facts += _gpu_facts(found.cards if with_cards else None, model)
    return Item(kind.name, (*facts, Item("count", len(names) or None)), why)


def _gpu_facts(cards: Cards | None, model: str | None) -> list[Item]:
    """Architecture and memory: of this host's own GPUs, or by the model's name."""
    arch = (cards.arch if cards else None) or architecture(model)
    memory = cards.memory_gib if cards else None
    facts = [Item("gpu_arch", arch), Item("gpu_memory_gib", memory)]
    return [fact for fact in facts if fact.value is not None]


def _of_of_draft(cards: Cards | None) -> str:
    return f"{cards.source}: {cards.count} x {cards.model}" if cards else ""


def _partition(part: Part) -> Item:
    queue = part.queue
    facts = [Item("node_type", part.kind.name)]
    if part.key != queue.name:
        facts.append(Item("queue", queue.name))
    if part.constraint:
        facts.append(Item("constraint", part.constraint))
    if queue.min_nodes > 1:
        facts.append(Item("min_nodes", queue.min_nodes))
    facts += [Item("max_nodes", queue.max_nodes), Item("max_wall", queue.max_wall)]
    if queue.restricted:
        facts.append(Item("restricted", True))
    return Item(part.key, tuple(facts), "; ".join(part.remarks))


def _mpi(libraries: Sequence[Library], launchers: Sequence[str], offered: Sequence[str]) -> Iterator[Item]:
    """The MPI libraries; ``offered``: what `srun --mpi=` takes."""
    entries: list[Item] = []
    for library in libraries:
        taken = [entry.key for entry in entries]
        key = simple(library.name) or library.family
        key = unique(f"{key}-module" if key in taken else key, taken)
        facts = [Item("family", library.family), Item("version", library.version)]
        if library.modules:
            facts.append(Item("modules", list(library.modules)))
        if library.prefix:
            facts.append(Item("prefix", library.prefix))
        started_by = [launcher for launcher in launchers if launcher in fitting(library.family)]
        if started_by and started_by != list(launchers):
            facts.append(Item("launchers", started_by))
        traits = TRAITS[library.family]
        if traits.srun_mpi_tried and traits.srun_mpi in offered and "srun" in started_by:
            facts.append(Item("srun_mpi", traits.srun_mpi))
        entries.append(Item(key, tuple(facts), library.source))
    if entries:
        why = f"`srun --mpi=` takes {', '.join(offered)}" if offered else ""
        yield Item("mpi", tuple(entries), why)
        yield Item("default_mpi", None, "null: each stack's own MPI library")


# Where a draft goes, and that it is never half written, never over a file that is there, and never faulty.


class HasText(Protocol):
    """A draft of any kind."""

    @property
    def text(self) -> str:
        """The file's text."""


@dataclass(frozen=True)
class Target:
    """The name of what is drafted, and its file; None: standard output."""

    name: str
    file: Path | None
    kind: KindName = "site"


def target(name: str | None, output: str | None, default: str, *, kind: KindName = "site") -> Target:
    """Where to write: ``output`` (``-``: standard output), else the user's own files of that kind.

    ``default`` is the name if none is given; ``-draft`` is put after it where hidl or the centre has a file of that
    name, which is not to be hidden unasked.
    Raises ``UsageError`` for an invalid name, and for a file of another name.
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
        return Target(chosen, None if output == "-" else directory / f"{chosen}.yaml", kind)
    file = Path(output)
    chosen = file.stem if name is None else name
    _require_name(chosen, kind)
    if file.is_dir():
        return Target(chosen, file / f"{chosen}.yaml", kind)
    if file.name != f"{chosen}.yaml":
        raise UsageError(
            f"{kind} {chosen} cannot be written to {file.name}, as hidl finds a {kind} by its file's name",
            hint=f"call the file {chosen}.yaml",
        )
    return Target(chosen, file, kind)


def require_free(target: Target, *, force: bool) -> None:
    """Raises ``UsageError`` where the file is there already, unless ``force``."""
    if target.file is not None and (target.file.exists() or target.file.is_symlink()) and not force:
        raise UsageError(
            f"{target.file} is there already",
            hint=f"name another {target.kind} or --output, or overwrite it with --force",
        )


def write(draft: HasText, file: Path) -> None:
    """Write the draft beside its place and rename it into it; ``HidlError`` where that cannot be done."""
    try:
        documents.write_text(file, draft.text)
    except OSError as error:
        raise HidlError(
            f"{file} cannot be written: {error.strerror or error}", hint="write it elsewhere with --output FILE"
        ) from error


def is_found(target: Target) -> bool:
    """Whether hidl finds this file by the name."""
    return any(entry.path == target.file for entry in overlay.list_all(target.kind))


def hidden(target: Target) -> tuple[Path, ...]:
    """The files of the same name that this one hides from now on."""
    entries = [entry for entry in overlay.list_all(target.kind) if entry.path == target.file]
    return tuple(below.path for entry in entries for below in entry.shadows)


def _require_name(name: str, kind: KindName) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        pattern = next(words for words in PATTERNS.values() if words.startswith("lower-case letters, digits, and"))
        raise UsageError(f"'{name}' cannot be a {kind}'s name", hint=f"a name is {pattern}") from None

"""A site file, drafted from what probes found: what they did not find is null, and each says where it is from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.launchers import LAUNCHERS, fitting
from hidl_cli.mpi import TRAITS
from hidl_cli.site.node_kinds import Kind, folded, simple, unique
from hidl_cli.site.open_questions import Topic, open_questions, sentence
from hidl_cli.site.probes.facts import Batch, Hardware, Library
from hidl_cli.site.probes.gpus import Cards, architecture
from hidl_cli.site.probes.survey import Found
from hidl_cli.site.queues import Part, Parts, parts
from hidl_cli.site.yamltext import Item, document

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
        host = Item("host", (Item("detect", True), *own), f"cores and memory are found at run time; {_of(found.cards)}")
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


def _of(cards: Cards | None) -> str:
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

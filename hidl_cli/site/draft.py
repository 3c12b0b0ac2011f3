"""A site file, drafted from what probes found: what they did not find is null, and each says where it is from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.launchers import LAUNCHERS, fitting
from hidl_cli.mpi import TRAITS
from hidl_cli.site.node_kinds import Kind, folded, simple, unique
from hidl_cli.site.probes.facts import Batch, Library
from hidl_cli.site.probes.gpus import Cards, architecture
from hidl_cli.site.probes.survey import Found
from hidl_cli.site.queues import Part, Parts, parts
from hidl_cli.site.yamltext import Item, document

_MOST_SHAPES, _LONGEST_PATTERN = 6, 500
_EXAMPLES = 60  # characters of folded node names in a comment


@dataclass(frozen=True)
class Draft:
    """A site file's name and text; ``remarks``: what people should know before they use it."""

    name: str
    text: str
    remarks: tuple[str, ...]


def default_name(found: Found) -> str:
    """The cluster's name, else the host's, as site names are written."""
    cluster = found.batch.cluster if found.batch else None
    return simple(cluster or "") or simple(found.hostname.partition(".")[0]) or "this-machine"


def draft(found: Found, name: str) -> Draft:
    """The site file for what was found; a machine without a scheduler extends ``local``."""
    if found.batch is None:
        items, remarks = list(_workstation(found, name)), found.remarks
        what = "a machine without a scheduler"
    else:
        grouped = parts(found.batch)
        items = list(_cluster(found, found.batch, grouped, name))
        remarks = (*found.batch.remarks, *found.remarks, *(f"left out: queue {one}" for one in grouped.left_out))
        what = f"{SYSTEMS[found.batch.scheduler].title} {found.batch.version or '(version unknown)'}"
    head = [
        f"Drafted by `hidl site new` on {found.hostname}: {what}.",
        "A comment says where what follows it is from; null is unknown. Fill in what you know, correct what is wrong:",
        f"`hidl site check {name}` lists what is still unknown.",
        *(f"- {remark}" for remark in remarks),
    ]
    return Draft(name, document(items, head=head), tuple(remarks))


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


def _cluster(found: Found, batch: Batch, grouped: Parts, name: str) -> Iterator[Item]:
    scheduler = SYSTEMS[batch.scheduler].title
    yield Item("name", name)
    yield Item("title", f"Cluster {batch.cluster or name}, drafted by hidl")
    yield Item("sources", [f"{', '.join(batch.sources)} (on {found.hostname})"])
    yield from _match(found.hostname, batch)
    yield from _interconnect(found)
    yield Item("scheduler", batch.scheduler)
    launchers = [launcher for launcher in LAUNCHERS if launcher in found.launchers]
    why = "on the PATH: " + (", ".join(found.launchers[launcher] for launcher in launchers) or "none")
    if "mpiexec" not in launchers and batch.scheduler in ("slurm", "pbs") and "pals" not in launchers:
        launchers.append("mpiexec")
        why += "; mpiexec comes with hidl's own stacks"
    yield Item("launchers", launchers, why)
    types = tuple(_node_type(kind, found, scheduler) for kind in grouped.kinds())
    yield Item("node_types", types)
    partitions = tuple(_partition(part) for part in grouped.parts)
    yield Item("partitions", partitions)
    yield Item("default_partition", grouped.default, f"{scheduler}'s default")
    yield from _mpi(found.libraries, launchers, batch.srun_mpi)
    if batch.policies:
        policies = tuple(Item(policy.key, policy.value, policy.why) for policy in batch.policies)
        yield Item("policies", policies, "what a job script must, may and must not say: those not given have defaults")


def _match(hostname: str, batch: Batch) -> Iterator[Item]:
    conditions = []
    if batch.cluster:
        why = f"{SYSTEMS[batch.scheduler].title}'s name of the cluster"
        conditions.append(Item("cluster", literal(batch.cluster), why))
    if pattern := host_pattern(hostname, [node.name for node in batch.nodes]):
        conditions.append(Item("hostname", pattern, "this host's name and the nodes', with any digits"))
    if conditions:
        yield Item("match", tuple(conditions))


def host_pattern(hostname: str, nodes: Sequence[str]) -> str | None:
    """A regular expression for the names of this host and of the compute nodes, with any digits for theirs.

    None where the nodes' names have too many shapes for one.
    """
    short, _, domain = hostname.partition(".")
    if not nodes:
        return _shape(short) + (f"\\.{literal(domain)}" if domain else "")
    shapes = list(dict.fromkeys(_shape(name) for name in (short, *nodes)))
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
    here = found.hostname.partition(".")[0] in names
    if hardware.processors:
        why += f"; {hardware.processors} processors each (cores or threads)"
    if kind.features:
        why += f"; features {','.join(sorted(kind.features))}"
    facts = [
        Item("cpu", found.machine.cpu if here else None),
        Item("arch", kind.arch or (found.machine.arch if here else None)),
        Item("sockets", hardware.sockets),
        Item("cores", hardware.cores),
        Item("threads_per_core", hardware.threads_per_core),
        Item("memory_gib", round(hardware.memory_mib / 1024, 1) or None if hardware.memory_mib else None),
        Item("gpus", hardware.gpus),
    ]
    if hardware.gpus:
        model = found.cards.model if here and found.cards and found.cards.model else hardware.gpu_model
        facts.append(
            Item("gpu_model", model, f"{scheduler} calls it so" if model == hardware.gpu_model and model else "")
        )
        facts += _gpu_facts(found.cards if here else None, model)
    return Item(kind.name, (*facts, Item("count", len(kind.nodes))), why)


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

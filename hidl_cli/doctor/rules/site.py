"""The site file against the scheduler and the modules of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hidl_cli import batch_systems
from hidl_cli.doctor.context import Context
from hidl_cli.doctor.subject import Subject
from hidl_cli.launch.limits import seconds
from hidl_cli.quoting import sh
from hidl_cli.site.keeping import read_record
from hidl_cli.site.probes import lsf, modules, slurm
from hidl_cli.site.probes.facts import ProbedNode, Queue
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import NodeType, Partition, Site
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_SECONDS = 10.0
_ACCOUNTING = re.compile(r"^AccountingStorageType\s*= (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Counterpart:
    """The site file, and the machine that it describes; on another machine, the file only.

    ``program``: the scheduler's program, if missing; ``silence``: why the scheduler does not respond. ``queues``,
    ``nodes`` and ``modules``: None if unknown. ``accounting``: Slurm's AccountingStorageType. ``stale``: MPI libraries
    whose modulefiles have changed since hidl read their version and prefix.
    """

    site: Site
    program: str | None = None
    silence: str | None = None
    queues: tuple[Queue, ...] | None = None
    nodes: tuple[ProbedNode, ...] | None = None
    accounting: str | None = None
    modules: frozenset[str] | None = None
    stale: tuple[str, ...] = ()


def probe(context: Context) -> Counterpart:
    """Query the scheduler and the modules."""
    if context.saved is not None:
        queues = context.saved.queues if all(queue.is_listed for queue in context.saved.queues) else ()
        return Counterpart(context.site, queues=queues or None, nodes=context.saved.nodes or None)
    if not context.is_here:
        return Counterpart(context.site)
    record = read_record(context.site.name)
    stale = tuple(name for name in context.site.mpi if record.is_stale(("mpi", name)))
    return replace(_of_scheduler(context), stale=stale)


def _of_scheduler(context: Context) -> Counterpart:
    site, host = context.site, context.host
    system = batch_systems.system(site.scheduler)
    if system is None:
        return Counterpart(site)
    program = system.shows
    if program and host.which(program) is None:
        return Counterpart(site, program=program)
    known = frozenset(modules.available(host) or ())
    ask = _PROBES.get(system.name)
    return ask(site, host, known) if ask else Counterpart(site, modules=known or None)


def _slurm(site: Site, host: Host, known: frozenset[str]) -> Counterpart:
    """``scontrol ping`` fails at once if slurmctld is down; other commands retry for ten to twenty seconds."""
    ping = host.ask("scontrol", "ping", seconds=_SECONDS)
    if ping is None or " is UP" not in ping:
        said = (ping or "").strip().partition("\n")[0] or "scontrol ping: no response"
        return Counterpart(site, silence=said, modules=known or None)
    batch = slurm.probe(host)
    accounting = _ACCOUNTING.search(host.ask("scontrol", "show", "config", seconds=_SECONDS) or "")
    return Counterpart(
        site,
        queues=(batch.queues if batch else ()) or None,
        nodes=(batch.nodes if batch else ()) or None,
        accounting=accounting[1] if accounting else None,
        modules=known or None,
    )


def _lsf(site: Site, host: Host, known: frozenset[str]) -> Counterpart:
    """LSF lists its hosts, but not those of a queue."""
    batch = lsf.probe(host)
    if batch is None or not batch.sources:
        return Counterpart(site, silence="lsid: no response", modules=known or None)
    return Counterpart(site, queues=batch.queues or None, modules=known or None)


#: How to ask each scheduler.
_PROBES: Mapping[str, Callable[[Site, Host, frozenset[str]], Counterpart]] = {"slurm": _slurm, "lsf": _lsf}

RULES: Rules[Counterpart] = Rules()
_SLACK = 1.02  # nodes of one kind differ in memory
_SHOWN = 8


@RULES.rule(
    "HD091",
    "A partition of the site file does not exist",
    severity="warning",
    why="The scheduler refuses jobs for an unknown partition (queue).",
)
def unknown_partition(facts: Counterpart) -> Iterator[Evidence]:
    """An error for the default partition."""
    if facts.queues is None:
        return
    known = {queue.name for queue in facts.queues}
    listed = ", ".join(sorted(known)[:_SHOWN])
    for key, partition in facts.site.partitions.items():
        name = partition.queue or key
        if name not in known:
            yield _unknown(facts.site, name, listed, "error" if key == facts.site.default_partition else None)


def _unknown(site: Site, name: str, listed: str, severity: Severity | None) -> Evidence:
    return Evidence(
        f"partition {name} of site {site.name} does not exist; the scheduler has {listed}",
        f"correct `partitions` in the site file: hidl site show {sh(site.name)}",
        where=name,
        severity=severity,
    )


@RULES.rule(
    "HD092",
    "The site file exceeds the limits of the machine",
    severity="warning",
    why="Jobs within the limits of the file are refused or pend forever; ranks are placed on cores that do not exist.",
)
def too_much(facts: Counterpart) -> Iterator[Evidence]:
    """Limits and node sizes of the file exceed those of the scheduler."""
    queues = {queue.name: queue for queue in facts.queues or ()}
    for key, partition in facts.site.partitions.items():
        queue = queues.get(partition.queue or key)
        if queue is None or queue.left_out is not None:
            continue
        members = [node for node in facts.nodes or () if queue.name in node.queues]
        if partition.constraint is not None:
            members = [node for node in members if partition.constraint in node.features]
        said = [*_limits(partition, queue, members), *_hardware(facts.site.node_types[partition.node_type], members)]
        if said:
            yield Evidence("; ".join(said), f"correct the site file: hidl site show {sh(facts.site.name)}", key)


def _limits(partition: Partition, queue: Queue, members: list[ProbedNode]) -> Iterator[str]:
    """Limits of jobs."""
    most = partition.max_nodes
    if most is not None and queue.max_nodes is not None and most > queue.max_nodes:
        yield f"max_nodes: {most} in the file, {queue.max_nodes} in the scheduler"
    elif most is not None and members and most > len(members):
        yield f"max_nodes: {most} in the file, but {queue.name} has {len(members)} nodes"
    if partition.min_nodes < queue.min_nodes:
        yield f"min_nodes: {partition.min_nodes} in the file, {queue.min_nodes} in the scheduler"
    walls = [limit.max_wall for limit in partition.max_wall_by_nodes] + [partition.max_wall or "00:00:00"]
    longest = max(walls, key=seconds)
    if queue.max_wall is not None and seconds(longest) > seconds(queue.max_wall):
        yield f"max_wall: {longest} in the file, {queue.max_wall} in the scheduler"


def _hardware(kind: NodeType, members: list[ProbedNode]) -> Iterator[str]:
    """Node sizes: the file may not exceed the largest node."""
    for name, said, found in (
        ("cores", kind.cores, [node.hardware.cores for node in members]),
        ("gpus", kind.gpus, [node.hardware.gpus for node in members]),
    ):
        known = [value for value in found if value is not None]
        if said is not None and known and len(known) == len(found) and said > max(known):
            yield f"{name}: {said} in the file, {max(known)} in the scheduler"
    memory = [node.hardware.memory_mib for node in members if node.hardware.memory_mib is not None]
    if kind.memory_gib is not None and memory and kind.memory_gib * 1024 > max(memory) * _SLACK:
        yield f"memory_gib: {kind.memory_gib:g} in the file, {max(memory) / 1024:.1f} in the scheduler"


@RULES.rule(
    "HD093",
    "A module of the site file is not available",
    severity="warning",
    why="Jobs load it first, and fail if it cannot be loaded.",
)
def gone_modules(facts: Counterpart) -> Iterator[Evidence]:
    """The module is not in `module avail`; in a hierarchy it may be hidden until another one is loaded."""
    if facts.modules is None:
        return
    names = {module.partition("/")[0] for module in facts.modules}
    for module, place in _modules(facts.site).items():
        name = module.partition("/")[0]
        if module in facts.modules or (module == name and name in names):
            continue
        others = sorted(known for known in facts.modules if known.partition("/")[0] == name)
        seen = f"{place}: {module} not found; available: {', '.join(others[-_SHOWN:]) or 'none of that name'}"
        yield Evidence(seen, f"module spider {sh(name)}, then correct the site file", where=module)


def _modules(site: Site) -> dict[str, str]:
    """Every module that a job may load, with its key in the file."""
    found = dict.fromkeys(site.policies.modules, "policies.modules")
    for name, mpi in site.mpi.items():
        found |= {module: f"mpi.{name}.modules" for module in mpi.modules if module not in found}
    return found


@RULES.rule(
    "HD094",
    "Slurm has no accounting",
    severity="info",
    why="hidl does not need it, as jobs record their own end; but a job that was killed with its node or ran out of "
    "memory is reported only as lost, and ReFrame's `slurm` scheduler requires sacct (hidl validate uses `squeue`).",
)
def no_accounting(facts: Counterpart) -> Iterator[Evidence]:
    """AccountingStorageType of Slurm's configuration is none."""
    if facts.accounting is not None and facts.accounting.endswith("/none"):
        yield Evidence(f"AccountingStorageType={facts.accounting}", "nothing to do; slurmdbd would add it")


@RULES.rule(
    "HD095",
    "The scheduler does not respond",
    severity="error",
    why="Jobs cannot be submitted or followed; running jobs continue.",
)
def silent_scheduler(facts: Counterpart) -> Iterator[Evidence]:
    """Its programs are missing on the site, or its daemon is down."""
    if facts.silence is not None:
        fix = f"try again later: hidl status; if it persists, contact the staff of {facts.site.name}"
        yield Evidence(facts.silence, fix, where=facts.site.name)
    elif facts.program is not None:
        fix = "load the scheduler's module, or log in to a submit node"
        yield Evidence(f"{facts.program} not found on PATH", fix, where=facts.site.name)


@RULES.rule(
    "HD096",
    "The modules of an MPI library have changed",
    severity="warning",
    why="Jobs load the new modules with the version and prefix that hidl recorded from the old ones.",
)
def stale_libraries(facts: Counterpart) -> Iterator[Evidence]:
    """The modulefiles or their directories have changed since hidl read them."""
    for name in facts.stale:
        seen = f"modulefiles of {' '.join(facts.site.mpi[name].modules)} have changed"
        yield Evidence(seen, f"hidl install --site {sh(facts.site.name)} reads them again", where=f"mpi.{name}")


SUBJECT = Subject(probe, RULES)

"""The site file, compared with this machine's scheduler and modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hidl_cli import batch_systems
from hidl_cli.doctor.context import Context, Subject
from hidl_cli.launch.options import seconds
from hidl_cli.quoting import sh
from hidl_cli.site.probes import software
from hidl_cli.site.probes.facts import ProbedNode, Queue
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import NodeType, Partition, Policies, Site
from hidl_workloads.doctor.finding import Evidence, Rules, Severity

_SECONDS = 10.0
_ACCOUNTING = re.compile(r"^AccountingStorageType\s*= (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class SiteFacts:
    """A site file and facts about the machine that it describes. On other machines, only the site file is set.

    Attributes:
        program: Name of the missing scheduler program.
        outage: Reason why the scheduler does not respond.
        queues: The scheduler's queues. Like ``nodes`` and ``modules``, they are None if unknown.
        accounting: Slurm's AccountingStorageType.
        stale: MPI libraries whose modulefiles have changed since hidl read their version and prefix.
    """

    site: Site
    program: str | None = None
    outage: str | None = None
    queues: tuple[Queue, ...] | None = None
    nodes: tuple[ProbedNode, ...] | None = None
    accounting: str | None = None
    modules: frozenset[str] | None = None
    stale: tuple[str, ...] = ()


def probe(context: Context) -> SiteFacts:
    """Query the scheduler and the modules."""
    if context.saved is not None:
        queues = context.saved.queues if all(queue.is_listed for queue in context.saved.queues) else ()
        return SiteFacts(context.site, queues=queues or None, nodes=context.saved.nodes or None)
    if not context.is_here:
        return SiteFacts(context.site)
    from hidl_cli.site.record import read_record  # imported only if needed, because this takes 20 ms

    record = read_record(context.site.name)
    stale = tuple(name for name in context.site.mpi if record.is_stale(("mpi", name)))
    return replace(_of_scheduler(context), stale=stale)


def _of_scheduler(context: Context) -> SiteFacts:
    site, host = context.site, context.host
    system = batch_systems.system(site.scheduler)
    if system is None:
        return SiteFacts(site)
    program = system.shows
    if program and host.which(program) is None:
        return SiteFacts(site, program=program)
    known = frozenset(software.available(host) or ())
    probe_scheduler = _PROBES.get(system.name)
    return probe_scheduler(site, host, known) if probe_scheduler else SiteFacts(site, modules=known or None)


def _slurm(site: Site, host: Host, known: frozenset[str]) -> SiteFacts:
    # scontrol ping fails immediately if slurmctld is down, while other commands retry for ten to twenty seconds.
    ping = host.ask("scontrol", "ping", seconds=_SECONDS)
    if ping is None or " is UP" not in ping:
        outage = (ping or "").strip().partition("\n")[0] or "scontrol ping: no response"
        return SiteFacts(site, outage=outage, modules=known or None)
    from hidl_cli.site.probes import slurm  # imported here, because checks before a run never examine the scheduler

    batch = slurm.probe(host)
    accounting = _ACCOUNTING.search(host.ask("scontrol", "show", "config", seconds=_SECONDS) or "")
    return SiteFacts(
        site,
        queues=(batch.queues if batch else ()) or None,
        nodes=(batch.nodes if batch else ()) or None,
        accounting=accounting[1] if accounting else None,
        modules=known or None,
    )


def _lsf(site: Site, host: Host, known: frozenset[str]) -> SiteFacts:
    # LSF does not list a queue's hosts, so the nodes remain unknown.
    from hidl_cli.site.probes import lsf

    batch = lsf.probe(host)
    if batch is None or not batch.sources:
        return SiteFacts(site, outage="lsid: no response", modules=known or None)
    return SiteFacts(site, queues=batch.queues or None, modules=known or None)


#: Probes by scheduler.
_PROBES: Mapping[str, Callable[[Site, Host, frozenset[str]], SiteFacts]] = {"slurm": _slurm, "lsf": _lsf}

RULES: Rules[SiteFacts] = Rules()
_SLACK = 1.02  # nodes of the same type may differ slightly in memory size
_SHOWN = 8


@RULES.rule(
    "HD091",
    "A partition of the site file does not exist",
    severity="warning",
    why="The scheduler rejects jobs for an unknown partition (queue).",
)
def unknown_partition(facts: SiteFacts) -> Iterator[Evidence]:
    """Report an error for the default partition and a warning for others, except with ``partition: never``."""
    if facts.queues is None or facts.site.policies.partition == "never":
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
        f"correct `partitions` in the site file, see: hidl site show {sh(site.name)}",
        where=name,
        severity=severity,
    )


@RULES.rule(
    "HD092",
    "The site file exceeds the limits of the machine",
    severity="warning",
    why="Jobs within the limits of the file are rejected or pend forever, or ranks are placed on cores that do not "
    "exist.",
)
def too_much(facts: SiteFacts) -> Iterator[Evidence]:
    """Report a warning if limits or node sizes in the file exceed the scheduler's.

    With ``partition: never``, jobs may run on any node with the features in their constraint.
    """
    queues = {queue.name: queue for queue in facts.queues or ()}
    policies = facts.site.policies
    for key, partition in facts.site.partitions.items():
        members = [node for node in facts.nodes or () if _has(node.features, partition.constraint)]
        excesses: list[str] = []
        if policies.partition != "never":
            queue = queues.get(partition.queue or key)
            if queue is None or queue.left_out is not None:
                continue
            members = [node for node in members if queue.name in node.queues]
            excesses += _limits(partition, queue, members)
        excesses += _hardware(facts.site.node_types[partition.node_type], policies, members)
        if excesses:
            yield Evidence(
                "; ".join(excesses), f"correct the site file, see: hidl site show {sh(facts.site.name)}", key
            )


def _has(features: frozenset[str], constraint: str | None) -> bool:
    """Return whether a node satisfies a constraint, or False for constraints that count or group nodes."""
    if constraint is None:
        return True
    return any(all(word in features for word in each.split("&")) for each in constraint.split("|"))


def _limits(partition: Partition, queue: Queue, members: list[ProbedNode]) -> Iterator[str]:
    """Yield the job limits in the site file that are wider than those of the scheduler."""
    if partition.qos is not None:  # a QOS may override the partition's limits (PartitionMaxNodes and other flags)
        return
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


def _hardware(kind: NodeType, policies: Policies, members: list[ProbedNode]) -> Iterator[str]:
    """Yield the node sizes in the file that exceed those of the largest node.

    If jobs do not request GPUs, the scheduler may not list them. If jobs do not request memory, the file may contain
    the installed memory, part of which the operating system reserves.
    """
    gpus = [node.hardware.gpus for node in members]
    if policies.gpus == "none" and not any(gpus):
        gpus = []
    for name, stated, found in (
        ("cores", kind.cores, [node.hardware.cores for node in members]),
        ("gpus", kind.gpus, gpus),
    ):
        known = [value for value in found if value is not None]
        if stated is not None and known and len(known) == len(found) and stated > max(known):
            yield f"{name}: {stated} in the file, {max(known)} in the scheduler"
    if policies.memory not in ("mem", "mem-per-cpu"):
        return
    memory = [node.hardware.memory_mib for node in members if node.hardware.memory_mib is not None]
    if kind.memory_gib is not None and memory and kind.memory_gib * 1024 > max(memory) * _SLACK:
        yield f"memory_gib: {kind.memory_gib:g} in the file, {max(memory) / 1024:.1f} in the scheduler"


@RULES.rule(
    "HD093",
    "A module of the site file is not available",
    severity="warning",
    why="Jobs load it first, and fail if it cannot be loaded.",
)
def gone_modules(facts: SiteFacts) -> Iterator[Evidence]:
    """Report a warning if the module is not in `module avail`.

    For a module that is loaded after others, only an informational finding is reported, since the module may be hidden
    until the others are loaded.
    """
    if facts.modules is None:
        return
    for module, (key, before) in _modules(facts.site).items():
        name = module.partition("/")[0]
        if any(re.match(rf"{re.escape(module)}(?![A-Za-z0-9])", known) for known in facts.modules):
            continue  # `module load` also accepts a name or a partial version
        others = sorted(known for known in facts.modules if known.partition("/")[0] == name)
        seen = f"{key}: {module} not found; available: {', '.join(others[-_SHOWN:]) or 'no module of that name'}"
        seen += f" (before {before} is loaded)" if before else ""
        fix = f"run module spider {sh(name)}, then correct the site file"
        yield Evidence(seen, fix, where=module, severity="info" if before else None)


def _modules(site: Site) -> dict[str, tuple[str, str | None]]:
    """Return all modules that jobs may load, each with its key in the file and the module that is loaded before it."""
    found: dict[str, tuple[str, str | None]] = {}
    lists = {
        "policies.modules": site.policies.modules,
        **{f"mpi.{name}.modules": mpi.modules for name, mpi in site.mpi.items()},
    }
    for key, names in lists.items():
        for before, module in zip((None, *names), names, strict=False):
            found.setdefault(module, (key, before))
    return found


@RULES.rule(
    "HD094",
    "Slurm has no accounting",
    severity="info",
    why="hidl does not require it, because jobs record their own end. However, a job that ran out of memory or was "
    "killed with its node is only reported as lost, and ReFrame's `slurm` scheduler requires sacct (hidl validate uses "
    "`squeue`).",
)
def no_accounting(facts: SiteFacts) -> Iterator[Evidence]:
    """Report an informational finding if Slurm's AccountingStorageType is ``accounting_storage/none``."""
    if facts.accounting is not None and facts.accounting.endswith("/none"):
        yield Evidence(f"AccountingStorageType={facts.accounting}", "no action required; slurmdbd adds accounting")


@RULES.rule(
    "HD095",
    "The scheduler does not respond",
    severity="error",
    why="Jobs cannot be submitted or monitored. Running jobs continue.",
)
def silent_scheduler(facts: SiteFacts) -> Iterator[Evidence]:
    """Report an error if the scheduler's programs are missing or its daemon is down."""
    if facts.outage is not None:
        fix = f"try again later with hidl status; if the problem persists, contact the staff of {facts.site.name}"
        yield Evidence(facts.outage, fix, where=facts.site.name)
    elif facts.program is not None:
        fix = "load the scheduler's module, or log in to a submit node"
        yield Evidence(f"{facts.program} not found on PATH", fix, where=facts.site.name)


@RULES.rule(
    "HD096",
    "The modules of an MPI library have changed",
    severity="warning",
    why="Jobs load the new modules, but use the version and prefix that hidl recorded for the old modules.",
)
def stale_libraries(facts: SiteFacts) -> Iterator[Evidence]:
    """Report a warning if modulefiles or their directories have changed since hidl read them."""
    for name in facts.stale:
        seen = f"modulefiles of {' '.join(facts.site.mpi[name].modules)} have changed"
        yield Evidence(seen, f"read them again with: hidl install --site {sh(facts.site.name)}", where=f"mpi.{name}")


SUBJECTS = (Subject(probe, RULES),)

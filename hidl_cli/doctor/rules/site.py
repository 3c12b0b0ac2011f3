"""Rules: does the site's file tell the truth about this machine, and is the machine in order?"""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.site import Counterpart, probe
from hidl_cli.launch.limits import seconds
from hidl_cli.quoting import sh
from hidl_cli.site.probes.facts import Node, Queue
from hidl_cli.site.schema import NodeType, Partition, Site
from hidl_workloads.doctor.finding import Finding, Rules, Seen, Severity

RULES: Rules[Counterpart] = Rules()

_SLACK = 1.02  # what nodes of one kind differ by in memory
_SHOWN = 8


def examine(context: Context) -> list[Finding]:
    """What is wrong with the site, or with what its file says."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD090",
    "The site is retired",
    severity="error",
    why="Its machine is switched off or closed to users: no job starts there any more.",
)
def retired(facts: Counterpart) -> Iterator[Seen]:
    """By the file's ``status``."""
    site = facts.site
    if site.status == "retired":
        mend = f"hidl site show {sh(site.successor)}" if site.successor else "hidl site list shows what is in service"
        yield Seen(f"the file of site {site.name} says status: retired", mend, where=site.name)


@RULES.rule(
    "HD091",
    "A partition of the site's file is not there",
    severity="warning",
    why="The scheduler refuses jobs for a partition (queue) that it does not know.",
)
def unknown_partition(facts: Counterpart) -> Iterator[Seen]:
    """An error for the site's default one."""
    if facts.queues is None:
        return
    known = {queue.name for queue in facts.queues}
    listed = ", ".join(sorted(known)[:_SHOWN])
    for key, partition in facts.site.partitions.items():
        name = partition.queue or key
        if name not in known:
            yield _unknown(facts.site, name, listed, "error" if key == facts.site.default_partition else None)


def _unknown(site: Site, name: str, listed: str, severity: Severity | None) -> Seen:
    return Seen(
        f"the file of site {site.name} names {name}; the scheduler has {listed}",
        f"correct `partitions` in the site's file: hidl site show {sh(site.name)}",
        where=name,
        severity=severity,
    )


@RULES.rule(
    "HD092",
    "The site's file promises more than the machine has",
    severity="warning",
    why="Jobs within the file's limits are refused, or wait for ever; ranks are placed on cores that are not there.",
)
def too_much(facts: Counterpart) -> Iterator[Seen]:
    """The file's limits against the scheduler's."""
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
            yield Seen("; ".join(said), f"correct it in the site's file: hidl site show {sh(facts.site.name)}", key)


def _limits(partition: Partition, queue: Queue, members: list[Node]) -> Iterator[str]:
    """The limits of jobs."""
    most = partition.max_nodes
    if most is not None and queue.max_nodes is not None and most > queue.max_nodes:
        yield f"max_nodes is {most} in the file, and {queue.max_nodes} for the scheduler"
    elif most is not None and members and most > len(members):
        yield f"max_nodes is {most} in the file, and {queue.name} has {len(members)} nodes"
    if partition.min_nodes < queue.min_nodes:
        yield f"min_nodes is {partition.min_nodes} in the file, and {queue.min_nodes} for the scheduler"
    walls = [limit.max_wall for limit in partition.max_wall_by_nodes] + [partition.max_wall or "00:00:00"]
    longest = max(walls, key=seconds)
    if queue.max_wall is not None and seconds(longest) > seconds(queue.max_wall):
        yield f"max_wall is {longest} in the file, and {queue.max_wall} for the scheduler"


def _hardware(kind: NodeType, members: list[Node]) -> Iterator[str]:
    """What nodes have: the file may say less than the best of them has, but not more."""
    for name, said, found in (
        ("cores", kind.cores, [node.hardware.cores for node in members]),
        ("gpus", kind.gpus, [node.hardware.gpus for node in members]),
    ):
        known = [value for value in found if value is not None]
        if said is not None and known and len(known) == len(found) and said > max(known):
            yield f"{name} is {said} in the file, and {max(known)} for the scheduler"
    memory = [node.hardware.memory_mib for node in members if node.hardware.memory_mib is not None]
    if kind.memory_gib is not None and memory and kind.memory_gib * 1024 > max(memory) * _SLACK:
        yield f"memory_gib is {kind.memory_gib:g} in the file, and {max(memory) / 1024:.1f} for the scheduler"


@RULES.rule(
    "HD093",
    "A module of the site's file is not offered",
    severity="warning",
    why="Jobs load it before anything else, and end where that fails.",
)
def gone_modules(facts: Counterpart) -> Iterator[Seen]:
    """Modules that jobs load, against `module avail`; in module trees one may be there, but hidden for now."""
    if facts.modules is None:
        return
    names = {module.partition("/")[0] for module in facts.modules}
    for module, place in _modules(facts.site).items():
        name = module.partition("/")[0]
        if module in facts.modules or (module == name and name in names):
            continue
        others = sorted(known for known in facts.modules if known.partition("/")[0] == name)
        seen = f"{place} names {module}; there is {', '.join(others[-_SHOWN:]) or 'none of that name to be seen'}"
        yield Seen(seen, f"module spider {sh(name)}, and correct it in the site's file", where=module)


def _modules(site: Site) -> dict[str, str]:
    """Every module that a job may load, with its place in the file."""
    found = dict.fromkeys(site.policies.modules, "policies.modules")
    for name, mpi in site.mpi.items():
        found |= {module: f"mpi.{name}.modules" for module in mpi.modules if module not in found}
    return found


@RULES.rule(
    "HD094",
    "Slurm keeps no accounting here",
    severity="info",
    why="Jobs record their end themselves, so hidl needs none; but a job that was killed with its node, or ran out of "
    "memory, is known only as lost, and ReFrame's own `slurm` scheduler needs sacct (hidl validate takes `squeue`).",
)
def no_accounting(facts: Counterpart) -> Iterator[Seen]:
    """By Slurm's configuration."""
    if facts.accounting is not None and facts.accounting.endswith("/none"):
        yield Seen(f"AccountingStorageType={facts.accounting}", "nothing needs to be done; slurmdbd would bring it")


@RULES.rule(
    "HD095",
    "The scheduler does not answer",
    severity="error",
    why="Nothing can be submitted, and of what runs nothing is heard; jobs that run go on.",
)
def silent_scheduler(facts: Counterpart) -> Iterator[Seen]:
    """Its programs are missing on the site itself, or nobody listens."""
    if facts.silence is not None:
        mend = f"try again later; hidl status asks anew. If it lasts, tell the staff of {facts.site.name}"
        yield Seen(facts.silence, mend, where=facts.site.name)
    elif facts.program is not None:
        mend = "load the scheduler's module, or log in to a node where jobs are submitted"
        yield Seen(f"there is no {facts.program} on PATH", mend, where=facts.site.name)

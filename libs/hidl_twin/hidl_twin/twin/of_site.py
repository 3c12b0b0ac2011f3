"""The dress of a twin from a site's file: hosts, partitions, limits and rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import InvalidInput, MissingPrecondition, UsageError
from hidl_cli.launch import hostlist
from hidl_cli.launch.options import seconds
from hidl_cli.mpi import TRAITS
from hidl_cli.site.load import ASSUMED_CORES, load_site
from hidl_cli.site.schema import Match, NodeType, Partition, Policies, Site
from hidl_twin.batch.systems import SYSTEMS
from hidl_twin.dress import Dress, Host, Limit, Queue, host_name

MAX_NODES = 64
_LAUNCH_HOST = "batch1"  # as on Summit; the scripts of jobs run there
_UNKNOWN_MEMORY_GIB = 4.0
_LITERAL = re.compile(r"[\w./:+-]*", re.ASCII)
_OPTIONS = ("partition", "account", "qos", "constraint", "reservation", "time")


def dress_of(name: str, nodes: int) -> Dress:
    """Dress of a twin of site ``name`` with at most ``nodes`` nodes of each kind.

    ``MissingPrecondition`` for a site whose scheduler is not known or cannot be had here.
    """
    site = load_site(name)
    if site.scheduler is None or site.scheduler not in ("slurm", SSH, *SYSTEMS):
        what = "its file does not say its scheduler" if site.scheduler is None else f"its scheduler is {site.scheduler}"
        raise MissingPrecondition(
            f"no twin of site {name}: {what}",
            hint="twins run Slurm, a stand-in for LSF, PBS or Flux, or hosts with sshd alone; hidl site list",
        )
    hosts = _hosts(site, nodes)
    if len(hosts) > MAX_NODES:
        kinds = len({host.kind for host in hosts})
        raise UsageError(
            f"a twin of {name} with {nodes} nodes of each of its {kinds} kinds requires {len(hosts)} nodes; "
            f"the limit is {MAX_NODES}",
            hint=f"--nodes {MAX_NODES // kinds}",
        )
    return Dress(
        cluster=cluster_name(site),
        site=site.name,
        scheduler=site.scheduler,
        hosts=hosts,
        queues=_queues(site, hosts),
        login=_login(site),
        launch=_LAUNCH_HOST if site.scheduler == "lsf" else None,
        limits=tuple(_limit(key, partition, site.policies) for key, partition in site.partitions.items()),
        rules=_rules(site.policies),
        srun_mpi=_srun_mpi(site),
    )


def cluster_name(site: Site) -> str:
    """The scheduler's name of the cluster: the one in the site's `match`, else the site's name."""
    pattern = site.match.cluster if site.match else None
    return pattern if pattern and _LITERAL.fullmatch(pattern) else site.name


def environment(match: Match | None) -> dict[str, str]:
    """Variables of the site's `match` whose pattern is one literal value."""
    patterns = {} if match is None else match.env
    plain = {name: re.sub(r"\\(.)", r"\1", pattern) for name, pattern in patterns.items()}
    return {
        name: value
        for name, value in plain.items()
        if _LITERAL.fullmatch(value) and re.fullmatch(patterns[name], value)
    }


def _srun_mpi(site: Site) -> str:
    """Return the type with which the twin's default MPI starts under a plain ``srun``: MPICH or Open MPI plays it."""
    default = site.mpi.get(site.default_mpi or "")
    return "pmix" if default and TRAITS[default.family].abi == "openmpi" else "pmi2"


def _login(site: Site) -> str:
    """Full name of the login host; ``InvalidInput`` if it does not match the site."""
    name = site.login_host or f"login.{host_name(site.name)}"
    pattern = site.match.hostname if site.match else None
    if pattern is not None and not re.fullmatch(pattern, name):
        raise InvalidInput(
            f"site {site.name} requires `login_host`: it is recognized by its host name ({pattern})",
            hint="set `login_host` in the site's file to a name that matches",
        )
    return name


def _hosts(site: Site, nodes: int) -> tuple[Host, ...]:
    """At most ``nodes`` hosts of each kind in a partition, within the site's count and its jobs' limits."""
    domain = _login(site).partition(".")[2]
    found: list[Host] = []
    for kind in dict.fromkeys(partition.node_type for partition in site.partitions.values()):
        node = site.node_types[kind]
        partitions = [partition for partition in site.partitions.values() if partition.node_type == kind]
        most = max(partition.max_nodes or nodes for partition in partitions)
        for name in _names(kind, node, min(nodes, most, node.count or nodes)):
            found.append(_host(site, kind, name, domain))
    if not found:
        kind, node = next(iter(site.node_types.items()), ("node", NodeType.model_validate({})))
        found += [_host(site, kind, name, domain) for name in _names(kind, node, min(nodes, node.count or nodes))]
    return tuple(found)


def _names(kind: str, node: NodeType, count: int) -> Sequence[str]:
    if node.hosts:
        return hostlist.expand(node.hosts)[:count]
    return [f"{host_name(kind)}-{number:03d}" for number in range(1, count + 1)]


def _host(site: Site, kind: str, name: str, domain: str) -> Host:
    node = site.node_types.get(kind) or NodeType.model_validate({})
    cores = (node.cores or ASSUMED_CORES) + len(node.reserved_cores)
    sockets = node.sockets if node.sockets and cores % node.sockets == 0 else 1
    pattern = site.match.hostname if site.match else None
    full = f"{name}.{domain}"
    return Host(
        name=name,
        full_name=full if domain and (pattern is None or re.fullmatch(pattern, full)) else name,
        kind=kind,
        sockets=sockets,
        cores_per_socket=cores // sockets,
        threads_per_core=node.threads_per_core or 1,
        memory_mib=int((node.memory_gib or _UNKNOWN_MEMORY_GIB) * 1024),
        cpu=node.cpu,
        gpus=node.gpus or 0,
        gpu_model=node.gpu_model,
        features=tuple(dict.fromkeys((*node.features, *_asked_features(site, kind)))),
    )


def _asked_features(site: Site, kind: str) -> Iterable[str]:
    """Features that partitions request for nodes of this kind."""
    for partition in site.partitions.values():
        if partition.node_type == kind and partition.constraint:
            yield from (
                word for word in re.split(r"[&|,()\[\]*]+", partition.constraint) if word and not word.isdigit()
            )


def _queues(site: Site, hosts: Sequence[Host]) -> tuple[Queue, ...]:
    """The scheduler's partitions; a single one of all nodes if scripts name none, or none is known."""
    whole = site.policies.cpus == "none" or site.policies.exclusive
    names = tuple(host.name for host in hosts)
    if site.policies.partition == "never" or not site.partitions:
        walls = [_longest(partition) for partition in site.partitions.values()]
        most = None if not walls or None in walls else max(wall for wall in walls if wall is not None)
        return (Queue("batch", names, default=True, max_minutes=most, whole_nodes=whole),)
    by_queue: dict[str, list[tuple[str, Partition]]] = {}
    for key, partition in site.partitions.items():
        by_queue.setdefault(partition.queue or key, []).append((key, partition))
    default = site.partitions[site.default_partition].queue or site.default_partition if site.default_partition else ""
    queues = []
    for queue, members in by_queue.items():
        kinds = {partition.node_type for _, partition in members}
        mosts, walls = [p.max_nodes for _, p in members], [_longest(p) for _, p in members]
        queues.append(
            Queue(
                name=queue,
                hosts=tuple(host.name for host in hosts if host.kind in kinds),
                default=queue == default,
                min_nodes=min(partition.min_nodes for _, partition in members),
                max_nodes=None if None in mosts else max(most for most in mosts if most is not None),
                max_minutes=None if None in walls else max(wall for wall in walls if wall is not None),
                whole_nodes=whole,
            )
        )
    return tuple(queues)


def _limit(key: str, partition: Partition, policies: Policies) -> Limit:
    walls = [(limit.max_nodes or 0, _minutes(limit.max_wall)) for limit in partition.max_wall_by_nodes]
    if partition.max_wall is not None:
        walls.append((0, _minutes(partition.max_wall)))
    return Limit(
        queue=None if policies.partition == "never" else partition.queue or key,
        qos=None if policies.qos == "never" else partition.qos,
        constraint=None if policies.constraint == "never" else partition.constraint,
        min_nodes=partition.min_nodes,
        max_nodes=partition.max_nodes,
        walls=tuple(walls),
    )


def _longest(partition: Partition) -> int | None:
    """Longest run time of any job, in minutes; None if unknown."""
    limits = [limit.max_wall for limit in partition.max_wall_by_nodes]
    walls = [*limits, *([partition.max_wall] if partition.max_wall else [])]
    return max(map(_minutes, walls), default=None)


def _minutes(wall: str) -> int:
    return math.ceil(seconds(wall) / 60)


def _rules(policies: Policies) -> dict[str, str]:
    uses = {option: getattr(policies, option) for option in _OPTIONS}
    found = {option: use for option, use in uses.items() if use != "optional"}
    return found if policies.node_names else {**found, "node_names": "never"}

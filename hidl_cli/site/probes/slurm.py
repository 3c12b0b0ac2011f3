"""Probe Slurm with ``scontrol``; slurm.conf(5) documents the parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hidl_cli.site.probes.facts import Hardware, Policy, ProbedNode, Queue, SchedulerFacts, listed
from hidl_cli.site.probes.host import Host

_SECONDS = 30.0  # with thousands of nodes, the controller needs several seconds
CONFIG = ("scontrol", "show", "config")
NODES = ("scontrol", "--oneliner", "show", "node")
PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
MPI = ("srun", "--mpi=list")
_CONFIG = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_VERSION = "SLURM_VERSION"
_NOTHING = {"(null)", "N/A", "NONE", "UNLIMITED", "INFINITE", ""}
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=.*")  # text from administrators, which may contain `key=value`
_FIELD = re.compile(r"(?:^| )([A-Za-z_]+)=(\S*)")
_WALL = re.compile(r"([0-9]{1,5}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]")
_ACCESS = ("AllowAccounts", "AllowGroups", "AllowQos")
_MEMORY = ("DefMemPerCPU", "DefMemPerNode", "MaxMemPerCPU", "MaxMemPerNode")
_SLICE = re.compile(r"(^|[_.-])\d+g\.\d+gb")  # a MIG slice: h100_4g.40gb
_SOCKETS = re.compile(r"\([^()]*\)")  # the end of gpu:a100:4(S:0-1)
_UNITS = {"": 1, "K": 2**10, "M": 2**20}


def probe(host: Host) -> SchedulerFacts | None:
    """Probe this host's Slurm. Returns None if there is no ``scontrol``.

    Facts that Slurm does not report are left empty. If slurmctld does not respond, all facts are empty.
    """
    if host.which("scontrol") is None:
        return None
    config = host.ask(*CONFIG, seconds=_SECONDS)
    if not (config and _CONFIG.search(config)):
        return SchedulerFacts("slurm")
    return describe(
        config=config,
        nodes=host.ask(*NODES, seconds=_SECONDS),
        partitions=host.ask(*PARTITIONS, seconds=_SECONDS),
        account=_default_account(host, dict(_CONFIG.findall(config))),
        mpi=host.ask(*MPI, stderr=True),
    )


def describe(
    *,
    config: str | None = None,
    nodes: str | None = None,
    partitions: str | None = None,
    account: str | None = None,
    mpi: str | None = None,
) -> SchedulerFacts:
    """Describe Slurm, given its commands' output. Pass None for a command that was not run or printed nothing.

    Without ``nodes``, each node gets its share of its partition's resources. Without ``partitions``, the partitions'
    limits are unknown. ``account`` is the default account.
    """
    settings = dict(_CONFIG.findall(config or ""))
    node_fields, partition_fields = list(_records(nodes, "NodeName")), tuple(_records(partitions, "PartitionName"))
    has_gpu_gres = "gpu" in settings.get("GresTypes", "").split(",") or (
        not settings and any(fields.get("Gres", "").startswith("gpu") for fields in node_fields)
    )
    versions = {fields["Version"] for fields in node_fields if "Version" in fields}
    found = tuple(_node(fields, has_gpu_gres) for fields in node_fields)
    queues = tuple(_queue(fields) for fields in partition_fields)
    if partitions is None:
        names = dict.fromkeys(name for node in found for name in node.queues)
        remarks = ("limits unknown; `scontrol show partition` prints them",)
        queues = tuple(Queue(name, remarks=remarks, is_listed=False) for name in names)
    return SchedulerFacts(
        "slurm",
        version=settings.get(_VERSION) or (versions.pop() if len(versions) == 1 else None),
        cluster=_known(settings.get("ClusterName")),
        nodes=found or tuple(_nodes_of(partition_fields)),
        queues=queues,
        policies=tuple(_policies(settings, partition_fields, has_gpu_gres, account)) if settings else (),
        srun_mpi=types(mpi),
        sources=("scontrol show config", "scontrol show partition", "scontrol show node"),
        remarks=tuple(_remarks(settings, has_gpu_gres)) if settings else (),
    )


def mpi_types(host: Host) -> tuple[str, ...]:
    """Return the values that ``srun --mpi=`` accepts here (empty if ``srun`` is missing or fails)."""
    return types(host.ask(*MPI, stderr=True))


def types(plugins: str | None) -> tuple[str, ...]:
    """Parse the output of ``srun --mpi=list``."""
    text = plugins or ""
    found = re.findall(r"^(?:srun:)?\s+(\w+)$", text, re.MULTILINE) + re.findall(r"\bpmix_v\d+\b", text)
    return tuple(dict.fromkeys(found))


def _records(text: str | None, first: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each ``scontrol`` record, with or without --oneliner.

    If a field is repeated, the first one is used.
    """
    fields: dict[str, str] = {}
    for line in (text or "").splitlines():
        if line.startswith(f"{first}="):
            if fields:
                yield fields
            fields = {}
        elif not (fields and line.startswith(" ")):
            continue
        fields = {**dict(reversed(_FIELD.findall(_FREE_TEXT.sub("", line)))), **fields}
    if fields:
        yield fields


def _nodes_of(partitions: Iterable[Mapping[str, str]]) -> Iterator[ProbedNode]:
    """Yield the partitions' nodes. A node's hardware is its share of the smallest partition that contains it."""
    queues: dict[str, list[str]] = {}
    shares: dict[str, Hardware] = {}
    for fields in sorted(partitions, key=lambda each: _number(each.get("TotalNodes")) or 0):
        names = listed(fields.get("Nodes", ""))
        total = dict(part.split("=", 1) for part in fields.get("TRES", "").split(",") if "=" in part)
        memory = re.fullmatch(r"([0-9]{1,12})M", total.get("mem", ""))
        share = Hardware(
            processors=_share(fields.get("TotalCPUs"), names),
            memory_mib=_share(memory[1] if memory else None, names) or None,
            gpus=_share(total.get("gres/gpu"), names),
        )
        for name in names:
            queues.setdefault(name, []).append(fields["PartitionName"])
            shares.setdefault(name, share)
    for name, its in queues.items():
        yield ProbedNode(name, shares[name], queues=tuple(its))


def _share(total: str | None, names: Sequence[str]) -> int | None:
    number = _number(total)
    return number // len(names) if number is not None and names and number % len(names) == 0 else None


def _node(fields: Mapping[str, str], has_gpu_gres: bool) -> ProbedNode:
    sockets, per_socket = _number(fields.get("Sockets")) or None, _number(fields.get("CoresPerSocket"))
    reserved_cores = _number(fields.get("CoreSpecCount")) or 0
    memory = _number(fields.get("RealMemory"))
    gpus, model = gpus_of(fields.get("Gres", "")) if has_gpu_gres else (None, None)
    hardware = Hardware(
        sockets=sockets,
        cores=max(1, sockets * per_socket - reserved_cores) if sockets and per_socket else None,
        threads_per_core=_number(fields.get("ThreadsPerCore")) or None,
        # Slurm assumes 1 MiB if RealMemory is not configured (slurm.conf(5)).
        memory_mib=max(1, memory - (_number(fields.get("MemSpecLimit")) or 0)) if memory and memory > 1 else None,
        gpus=gpus,
        gpu_model=model,
    )
    return ProbedNode(
        name=fields["NodeName"],
        hardware=hardware,
        features=frozenset(_words(fields.get("AvailableFeatures"))),
        queues=tuple(_words(fields.get("Partitions"))),
        arch=_known(fields.get("Arch")),
    )


def _queue(fields: Mapping[str, str]) -> Queue:
    wall = fields.get("MaxTime", "")
    fewest, most = max(1, _number(fields.get("MinNodes")) or 1), _number(fields.get("MaxNodes"))
    state = fields.get("State", "UP")
    admitted = [f"{key}={fields[key]}" for key in _ACCESS if fields.get(key, "ALL") != "ALL"]
    left_out = None
    if fields.get("RootOnly") == "YES":
        left_out = "only root can submit jobs"
    elif fields.get("Nodes", "(null)") in _NOTHING:
        left_out = "it has no nodes"
    remarks = [*admitted]
    if state != "UP":
        remarks.append(f"State={state}")
    if fields.get("OverSubscribe") == "EXCLUSIVE":
        remarks.append("OverSubscribe=EXCLUSIVE: jobs get whole nodes")
    if most is not None and most < fewest:
        remarks.append(f"MaxNodes={most} is below MinNodes={fewest}")
    if _number(fields.get("SuspendTime")):
        resume = fields.get("ResumeTimeout", "?")
        remarks.append(f"SuspendTime={fields['SuspendTime']}: idle nodes are off and need up to {resume} s to start")
    remarks += [f"{key}={fields[key]}" for key in _MEMORY if _number(fields.get(key))]
    if _known(fields.get("DefaultTime")):
        remarks.append(f"DefaultTime={fields['DefaultTime']}: for jobs without a time limit")
    if fields.get("MaxNodes") == "UNLIMITED":
        remarks.append(f"MaxNodes=UNLIMITED ({fields.get('TotalNodes', '?')} nodes)")
    return Queue(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        min_nodes=fewest,
        max_nodes=most if most and most >= fewest else None,
        max_wall=wall if _WALL.fullmatch(wall) else None,
        restricted=bool(admitted),
        left_out=left_out,
        remarks=tuple(remarks),
    )


def _policies(
    config: Mapping[str, str], partitions: tuple[Mapping[str, str], ...], has_gpu_gres: bool, account: str | None
) -> Iterator[Policy]:
    select, parameters = config.get("SelectType", ""), config.get("SelectTypeParameters", "")
    exclusive = [one.get("OverSubscribe") == "EXCLUSIVE" for one in partitions if one.get("RootOnly") != "YES"]
    whole_nodes = select == "select/linear" or all(exclusive)
    if select and not whole_nodes:
        why = f"SelectType={select}: nodes are shared, and each rank gets one core unless more are requested"
        yield Policy("cpus", "cpus-per-task", why)
    limits = [f"{key}={config[key]}" for key in ("DefMemPerNode", "DefMemPerCPU") if _known(config.get(key))]
    if "MEMORY" in parameters.upper() and limits:
        why = f"SelectTypeParameters={parameters}, {limits[0]}: default for jobs without a memory request"
        yield Policy("memory", "mem", why)
    if has_gpu_gres:
        yield Policy("gpus", "gres", f"GresTypes={config['GresTypes']}")
    enforced = config.get("AccountingStorageEnforce", "none")
    if account is not None:
        use, default = ("optional", f"default account {account}") if account else ("required", "no default account")
        yield Policy("account", use, f"AccountingStorageEnforce={enforced}: {default}")


def _default_account(host: Host, config: Mapping[str, str]) -> str | None:
    """Return the user's default account, which is empty if there is none.

    Returns None if accounts are unknown or not enforced.
    """
    enforced, user = config.get("AccountingStorageEnforce", "none"), host.environment.get("USER")
    if not user or not any(word in enforced for word in ("associations", "limits", "qos", "wckeys", "safe")):
        return None
    printed = host.ask("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=DefaultAccount")
    return None if printed is None else printed.strip().partition("\n")[0]


def _remarks(config: Mapping[str, str], has_gpu_gres: bool) -> Iterator[str]:
    enforce = config.get("EnforcePartLimits", "NO")
    if enforce == "NO":
        yield "EnforcePartLimits=NO: jobs beyond a partition's limits are accepted, but never start"
    if not has_gpu_gres:
        yield "no gpu in GresTypes, so the GPUs of nodes are unknown"
    if _known(config.get("MpiDefault")):
        yield f"MpiDefault={config['MpiDefault']}: default of `srun --mpi`"
    for key in ("JobSubmitPlugins", "CliFilterPlugins"):
        if _known(config.get(key)):
            yield f"{key}={config[key]}: site rules may reject or change jobs"


def _known(value: str | None) -> str | None:
    return None if value is None or value.strip() in _NOTHING or value.strip().lower() == "none" else value.strip()


def _number(value: str | None) -> int | None:
    return int(value) if value and re.fullmatch(r"[0-9]{1,12}", value) else None


def _words(value: str | None) -> list[str]:
    return [word for word in (_known(value) or "").split(",") if word]


def gpus_of(gres: str) -> tuple[int | None, str | None]:
    """Return the number and models of GPUs in a ``Gres=`` value such as ``gpu:a100:4(S:0-1),fpga:1`` (gres.conf(5)).

    Returns (None, None) if the value is invalid. MIG slices are listed with the models, but only counted if there are
    no whole GPUs.
    """
    whole: dict[str, int] = {}
    slices: dict[str, int] = {}
    for item in _SOCKETS.sub("", gres).split(","):
        kind, *rest = item.strip().split(":")
        if kind != "gpu":
            continue
        words = [word for word in rest if word != "no_consume"]
        number = re.fullmatch(r"([0-9]{1,6})([KM]?)", words.pop()) if words else None
        if rest and number is None:
            return None, None
        count = int(number[1]) * _UNITS[number[2]] if number else 1
        model = words[0] if words else ""
        kinds = slices if _SLICE.search(model.lower()) else whole
        kinds[model] = kinds.get(model, 0) + count
    beside = [f"{count} x {name}" for name, count in slices.items()] if whole else list(slices)
    return sum((whole or slices).values()), ", ".join([*sorted(filter(None, whole)), *sorted(beside)]) or None

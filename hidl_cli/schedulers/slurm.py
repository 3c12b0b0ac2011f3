"""The Slurm backend, which uses ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import NoReturn

from hidl_cli import paths
from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Completed
from hidl_cli.record import Run, State
from hidl_cli.schedulers.backend import (
    SUBMIT_SECONDS,
    Backend,
    NoAnswer,
    Programs,
    Receipt,
    Refused,
    batches,
    complaint,
    options,
    whole_lines,
)
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.site import hidl_cluster
from hidl_cli.site.job_options import render_settings
from hidl_cli.site.schema import Policies

PING_SECONDS = 5.0
ACCOUNTING_SECONDS = 5.0
_NAME_VALID_SECONDS = 86400.0
_LEARNED: dict[Path, str] = {}

PROGRAMS = Programs(
    kept=frozenset(("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_UMASK")),
    dropped=(
        "SLURM_",
        "SLURMD_",
        "SRUN_",
        "SBATCH_",
        "SALLOC_",
        "SQUEUE_",
        "SACCT_",
        "SINFO_",
        "SCONTROL_",
        "SCANCEL_",
        "PMI_",
        "PMIX_",
    ),
    unreachable=re.compile(
        r"unable to contact slurm controller|timed out|zero bytes were|connection refused|connect failure|not respond"
        r"|transport endpoint|standby mode|configuration source|communication|munge|authentication"
        r"|temporarily unable|unable to accept|not in service|network is unreachable|no route to host",
        re.IGNORECASE,
    ),
    waiting=re.compile(r"sleeping and retrying|still trying|retrying connection", re.IGNORECASE),
    variables=hidl_cluster.environment,
)
call = PROGRAMS.call


def ping() -> None:
    """Check that a controller responds; raise ``NoAnswer`` within seconds if none does.

    ``scontrol ping`` returns immediately if nothing listens, while other programs take ten to twenty seconds.
    """
    completed = call("scontrol", "ping", timeout=PING_SECONDS)
    if " is UP" in completed.stdout or (completed.status == 0 and "DOWN" not in completed.stdout):
        return
    raise NoAnswer((completed.stdout.strip() or complaint(completed)).splitlines()[0])


def accounting_answers() -> bool:
    """Return whether ``sacct`` works. Without it, ReFrame's `slurm` scheduler fails after three attempts."""
    try:
        completed = call("sacct", "--noheader", "--starttime=now", "--format=jobid", timeout=ACCOUNTING_SECONDS)
    except NoAnswer:
        return False
    return completed.status == 0


def keys(text: str) -> dict[str, str]:
    """Parse the ``Key=value`` output of ``scontrol show``, in which a value ends before the next key."""
    return dict(re.findall(r"([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", text, re.MULTILINE))


def partition(name: str) -> dict[str, str]:
    """Return the output of ``scontrol show partition`` (empty if unavailable)."""
    return _shown("scontrol", "show", "partition", name)


@cache
def this_cluster() -> str | None:
    """Return the name of the cluster, or None if Slurm has not responded within the last day."""
    file = _cluster_file()
    if file in _LEARNED:
        return _LEARNED[file]
    with suppress(OSError):
        if time.time() - file.stat().st_mtime < _NAME_VALID_SECONDS:
            return file.read_text(encoding="utf-8")
    return _query_cluster(file)


def learn_cluster() -> None:
    """Query Slurm for the name of the cluster, and update ``this_cluster``."""
    file = _cluster_file()
    name = _query_cluster(file)
    if name is not None:
        _LEARNED[file] = name
        this_cluster.cache_clear()


def _cluster_file() -> Path:
    """Return the file that caches this host's cluster name.

    Each host has its own file, because several clusters may share a home directory.
    """
    variables = hidl_cluster.environment()
    programs = shutil.which("scontrol", path=variables.get("PATH")) or ""
    parts = [platform.node(), programs, *(variables.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return paths.user_state() / "slurm" / f"cluster-{key}"


def _query_cluster(file: Path) -> str | None:
    name = _shown("scontrol", "show", "config").get("ClusterName")
    if name is not None:
        with suppress(OSError):
            write_text(file, name)
    return name


def _shown(*command: str) -> dict[str, str]:
    try:
        completed = call(*command, timeout=PING_SECONDS)
    except NoAnswer:
        return {}
    return keys(re.sub(r"[ \t]+= ?", "=", completed.stdout)) if completed.status == 0 else {}


# Reasons why a pending job will never start.


#: Pending reasons that show that a job can never start.
_FOR_EVER = {
    "BadConstraints": "no node satisfies the request",
    "DependencyNeverSatisfied": "the job that it depends on did not end as required",
    "InvalidAccount": "the account cannot be used here",
    "InvalidQOS": "the quality of service cannot be used here",
    "QOSNotAllowed": "the quality of service is not allowed in this partition",
    "AccountNotAllowed": "the account is not allowed in this partition",
    "ReservationDeleted": "the reservation was deleted",
    "MaxRequeueExceeded": "it was requeued as often as the site allows",
    "MaxMemPerLimit": "it requests more memory than the site allows",
    "QOSTimeLimit": "it requests more time than the quality of service allows",
    "AssociationTimeLimit": "it requests more time than the account allows",
}
#: Seconds for which some of these reasons must persist before they count: cloud nodes may still be booting, and a
#: controller that started before its database has no accounts yet.
_AFTER = {"BadConstraints": 600.0, "InvalidAccount": 60.0, "InvalidQOS": 60.0}
#: Per-job limits set by accounts and qualities of service (AssocMaxWallDurationPerJobLimit, QOSMinGRES, ...). Limits on
#: all jobs of a user or account together (AssocMaxJobsLimit, QOSMaxNodePerUserLimit, AssocGrp...) are temporary.
_PER_JOB_LIMIT = re.compile(r"(Assoc|QOS)(Max\w*Per(Job|Node)\w*|MaxWallDuration\w*|Min\w+)")

_UNLIMITED = frozenset(("", "UNLIMITED", "INFINITE", "(null)"))


def never_starts(job: SlurmJob, partition: Callable[[str], Mapping[str, str]]) -> StartBlocker | None:
    """Return why a pending job will never start, including the limit and its value, or None if the job may start.

    ``partition`` returns the output of ``scontrol show partition``. A reason that names a partition limit is only
    trusted if the partition's limits confirm it, since Slurm reports the same reason when nodes are merely down.
    """
    reason = re.split(r"[\s,(]", job.why, maxsplit=1)[0]
    if reason in ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig"):
        exceeded = _exceeded_limit(job, partition(job.partition))
        return StartBlocker(f"{reason}: {exceeded}") if exceeded else None
    if reason in _FOR_EVER:
        return StartBlocker(f"{reason}: {_FOR_EVER[reason]}", after=_AFTER.get(reason, 0.0))
    return StartBlocker(f"{reason}: it exceeds a per-job limit") if _PER_JOB_LIMIT.fullmatch(reason) else None


def limits(name: str, partition: Mapping[str, str]) -> str:
    """Describe a partition's limits. The result is empty if it has none."""
    known = {key: partition.get(key, "") for key in ("MinNodes", "MaxNodes", "TotalNodes", "MaxTime")}
    text = ", ".join(f"{key}={value}" for key, value in known.items() if value not in _UNLIMITED and value != "0")
    return f"partition {name} allows {text}" if text else ""


def _exceeded_limit(job: SlurmJob, partition: Mapping[str, str]) -> str | None:
    """Describe the partition limit that the job violates. Returns None if there is none."""
    nodes = int(job.nodes) if job.nodes.isdecimal() else 0
    for key in ("MaxNodes", "TotalNodes"):
        if partition.get(key, "").isdecimal() and nodes > int(partition[key]):
            return f"{nodes} nodes requested, but partition {job.partition} has {key}={partition[key]}"
    if partition.get("MinNodes", "").isdecimal() and nodes < int(partition["MinNodes"]):
        return f"{nodes} node(s) requested, but partition {job.partition} has MinNodes={partition['MinNodes']}"
    requested, most = minutes(job.limit), minutes(partition.get("MaxTime", ""))
    if most is not None and (requested is None or requested > most):
        limit = job.limit or "no time limit"
        return f"{limit} requested, but partition {job.partition} has MaxTime={partition['MaxTime']}"
    return None


# Explanations for sbatch errors.


_Options = Mapping[str, str]


def explain(error: str, options: _Options) -> tuple[str | None, str]:
    """Return the limits or names at this site that explain an sbatch error, if available, and a hint.

    ``options`` contains the options in the job script.
    """
    for pattern, fact, hint in _CASES:
        if re.search(pattern, error, re.IGNORECASE):
            return fact(options) or None, hint
    return None, "this error is from sbatch; try `sbatch --test-only job.sh` in the run's directory"


def _partitions(_: _Options) -> str:
    return _listed("available partitions", "sinfo", "--noheader", "--all", "--format=%R")


def _limits(options: _Options) -> str:
    name = options.get("partition") or _default_partition()
    return limits(name, partition(name)) if name else ""


def _accounts(_: _Options) -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    return _listed(
        "your accounts", "sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}", "format=account"
    )


def _qualities(_: _Options) -> str:
    return _listed(
        "available qualities of service", "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"
    )


def _features(_: _Options) -> str:
    return _listed("available node features", "sinfo", "--noheader", "--all", "--format=%f")


def _gres(_: _Options) -> str:
    return _listed("available generic resources", "sinfo", "--noheader", "--all", "--format=%G")


def _reservations(_: _Options) -> str:
    try:
        completed = call("scontrol", "show", "reservation", "--oneliner", timeout=PING_SECONDS)
    except NoAnswer:
        return ""
    names = re.findall(r"ReservationName=(\S+)", completed.stdout)
    return f"available reservations: {', '.join(names) or 'none'}"


_CASES: tuple[tuple[str, Callable[[_Options], str], str], ...] = (
    (r"partition name|invalid partition", _partitions, "use --partition NAME, or correct `queue` in the site's file"),
    (r"node count|too many nodes", _limits, "request fewer nodes (--nodes), or another partition (--partition)"),
    (r"time limit", _limits, "request less time (--time), or another partition (--partition)"),
    (r"account", _accounts, "use --account NAME"),
    (r"qos", _qualities, "use --qos NAME"),
    (r"feature", _features, "use --constraint NAME"),
    (r"reservation", _reservations, "use --reservation NAME"),
    (r"generic resource|gres", _gres, "check `policies.gpus` in the site's file, which sets how GPUs are requested"),
    (r"memory", _limits, "check `policies.memory` in the site's file, which sets how memory is requested"),
    (
        r"processors requested|node configuration",
        _limits,
        "request fewer nodes (--nodes), fewer ranks per node (--ranks-per-node), or another partition (--partition)",
    ),
)


def _default_partition() -> str | None:
    """Return the default partition, which sinfo marks with an asterisk."""
    names = re.findall(r"^(\S+)\*$", _output("sinfo", "--noheader", "--format=%P"), re.MULTILINE)
    return names[0] if names else None


def _listed(title: str, *command: str) -> str:
    names = sorted({line.strip() for line in _output(*command).splitlines()} - {"", "(null)"})
    return f"{title}: {', '.join(names)}" if names else ""


def _output(*command: str) -> str:
    """Return a program's output.

    The output is empty if the program fails or takes too long, because the explanation is optional.
    """
    return _answer(*command) or ""


def _answer(*command: str) -> str | None:
    """Return a program's output, or None if the program fails or takes too long."""
    try:
        completed = call(*command, timeout=ACCOUNTING_SECONDS)
    except NoAnswer:
        return None
    return completed.stdout if completed.status == 0 else None


# The ``#SBATCH`` lines in a job script.


_PLAIN = re.compile(r"[A-Za-z0-9_.,:;/@%+=*&|()\[\]~^-]+")
_OPTION = re.compile(r"#SBATCH\s+(?:--(?P<long>[a-z][a-z-]*)|-(?P<short>[A-Za-z]))(?:[= ]?(?P<value>.*))?")
_SHORT = {
    "A": "account",
    "C": "constraint",
    "J": "job-name",
    "N": "nodes",
    "p": "partition",
    "q": "qos",
    "t": "time",
}


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the ``#SBATCH`` lines that request ``allocation`` according to the site's policies.

    At the time limit, and if a job is cancelled, Slurm also sends SIGTERM to the batch script, whose trap has
    ``KillWait`` seconds to record the end. Only runs with several jobs request a signal ahead of the limit, because it
    would end any other job early, and Slurm would report FAILED rather than TIMEOUT.
    """
    # If there are enough cores, srun may start more tasks than the job requests.
    tasks = 1 if allocation.cores_per_node else allocation.ranks_per_node
    uses = {
        "partition": (policies.partition, allocation.queue),
        "time": (policies.time, _time(allocation.time_limit)),
        "account": (policies.account, allocation.account),
        "qos": (policies.qos, allocation.qos),
        "constraint": (policies.constraint, allocation.constraint),
        "reservation": (policies.reservation, allocation.reservation),
    }
    options: dict[str, str | int | None] = {
        "job-name": allocation.job_name,
        **{name: None if use == "never" else value for name, (use, value) in uses.items()},
        "nodes": f"{allocation.least_nodes}-{allocation.nodes}" if allocation.least_nodes else allocation.nodes,
        "ntasks-per-node": None if policies.tasks == "none" or allocation.least_nodes else tasks,
        **_cpus(allocation, policies),
        **_memory(allocation, policies),
        **_gpus(allocation, policies),
        "export": {"all": "ALL", "none": "NONE", "never": None}[policies.export],
        # Relative to the run's directory, from which the job is submitted. A requeued job appends to these files.
        "output": "stdout.log",
        "error": "stderr.log",
        "open-mode": "append",
        "signal": None if allocation.stop_seconds is None else f"B:USR1@{allocation.stop_seconds}",
    }
    lines = [f"--{name}={_word(str(value))}" for name, value in options.items() if value is not None]
    further = render_settings("slurm", allocation.settings, policies)
    may_requeue = allocation.stop_seconds is not None and "--no-requeue" not in (*policies.directives, *further)
    flags = [
        *(["--exclusive"] if allocation.is_exclusive(policies) else []),
        *(["--requeue"] if may_requeue else []),
    ]
    return tuple(f"#SBATCH {line}" for line in (*lines, *flags, *policies.directives, *further))


def options_of(script: Path) -> dict[str, str]:
    """Return a job script's ``#SBATCH`` options by their long names. Raises ``OSError`` if it cannot be read."""
    found: dict[str, str] = {}
    for line in script.read_text(encoding="utf-8").splitlines():
        match = _OPTION.match(line)
        if match:
            name = match["long"] or _SHORT.get(match["short"], match["short"])
            found[name] = (match["value"] or "").strip().strip('"')
    return found


def _time(seconds: float | None) -> str | None:
    """Format a time limit, rounded up to whole minutes as Slurm does."""
    if seconds is None:
        return None
    minutes = SYSTEMS["slurm"].round_limit(seconds) // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _cpus(allocation: Allocation, policies: Policies) -> dict[str, int]:
    """Return the options that request cores. By default, Slurm counts hardware threads instead."""
    cores = allocation.cores_per_node or allocation.cores_per_rank
    if (policies.cpus == "none" and allocation.exclusive is not False) or cores is None:
        return {}
    several = (allocation.threads_per_core or 1) > 1
    return {"cpus-per-task": cores, **({"threads-per-core": 1} if several else {})}


def _memory(allocation: Allocation, policies: Policies) -> dict[str, str]:
    """Return the options that request memory. ``--mem=0`` requests all of a node's memory."""
    gib = allocation.memory_gib
    if allocation.requests_memory and gib is not None:
        return {"mem": f"{int(gib * 1024)}M"}
    if policies.memory == "all":
        return {"mem": "0"}
    if policies.memory == "mem":
        return {"mem": "0" if gib is None else f"{int(gib * 1024)}M"}
    if policies.memory == "mem-per-cpu" and gib is not None:
        cores = allocation.cores_per_node or allocation.ranks_per_node * (allocation.cores_per_rank or 1)
        return {"mem-per-cpu": f"{max(1, int(gib * 1024 / cores))}M"}
    return {}


def _gpus(allocation: Allocation, policies: Policies) -> dict[str, str]:
    number = allocation.gpus_per_node
    if not number or (policies.gpus == "none" and allocation.exclusive is not False):
        return {}
    return {"gres": f"gpu:{number}"} if policies.gpus == "gres" else {"gpus-per-node": str(number)}


def _word(value: str) -> str:
    """Quote a value for a ``#SBATCH`` line if it contains special characters."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Job queries, and parsers for their output.


#: Names of the same fields in squeue and in sacct. The last field may contain the separator. ``--json`` is not used,
#: since it ignores filters and differs between versions.
_FIELDS = (
    ("%i", "JobID"),
    ("%T", "State"),
    ("%r", "Reason"),
    ("%S", "Start"),
    ("%D", "NNodes"),
    ("%l", "Timelimit"),
    ("%e", "End"),
    ("%P", "Partition"),
    ("%N", "NodeList"),
    ("%Z", "WorkDir"),
)
_NOTHING = frozenset(("", "None", "N/A", "Unknown", "None assigned", "(null)"))

#: Slurm's names for each state. ExitCode is not used: it is 0:0 after a timeout. An array or heterogeneous job has the
#: first state in this list that any of its parts has.
_STATES = {
    State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING UPDATE_DB EXPEDITING REVOKED",
    State.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    State.NODE_FAIL: "NODE_FAIL BOOT_FAIL RECONFIG_FAIL",
    State.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    State.TIMEOUT: "TIMEOUT DEADLINE",
    State.PREEMPTED: "PREEMPTED",
    State.FAILED: "FAILED LAUNCH_FAILED",
    State.CANCELLED: "CANCELLED",
    State.COMPLETED: "COMPLETED",
}
_BY_WORD = {word: state for state, words in _STATES.items() for word in words.split()}
_ORDER = list(_STATES)


#: Instructions for releasing a held job (squeue(1), "JOB REASON CODES").
_HELD = {
    "JobHeldUser": "scontrol release {id} releases it",
    "JobHeldAdmin": "only an administrator can release it",
    "launch failed requeued held": "its node could not start it; scontrol release {id} starts another attempt",
    "job requeued in held state": "scontrol release {id} releases it",
}


@dataclass(frozen=True)
class SlurmJob(Job):
    """A Slurm job, with its pending reason and its request as printed by Slurm; ``mark`` is the submit directory."""

    why: str = ""
    nodes: str = ""
    limit: str = ""
    partition: str = ""


def squeue(cluster: str | None, *, id: str | None = None) -> list[str]:
    """Return the command that lists the job ``id``, or all jobs of the user if it is None.

    The list includes jobs that ended recently, and those in hidden partitions.
    """
    fields = f"--format={'|'.join(short for short, _ in _FIELDS)}"
    chosen = f"--user={os.getuid()}" if id is None else f"--jobs={id}"
    return ["squeue", "--noheader", "--all", "--noconvert", "--states=all", chosen, fields, *on(cluster)]


def sacct(cluster: str | None, *, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """Return the command that lists jobs from the accounting database.

    Args:
        cluster: Cluster that the jobs run on (default: the programs' default cluster).
        ids: Ids of the jobs to list. If empty, all of the user's jobs are listed.
        since: List jobs since this time, in seconds since the epoch.
    """
    fields = f"--format={','.join(long for _, long in _FIELDS)}"
    words = ["sacct", "--allocations", "--noheader", "--parsable2", fields]
    if ids:
        words.append(f"--jobs={','.join(ids)}")
    if since is not None:
        words.append(f"--starttime={datetime.fromtimestamp(since):%Y-%m-%dT%H:%M:%S}")
    return words + on(cluster)


def energy_plugins(cluster: str | None) -> list[str] | None:
    """Return the names of the plugins with which Slurm measures energy, such as ``ipmi``.

    Returns an empty list if Slurm does not measure energy, and None if Slurm does not respond.
    """
    config = _answer("scontrol", *on(cluster), "show", "config")
    if config is None:
        return None
    shown = re.search(r"^AcctGatherEnergyType\s*=\s*(\S+)", config, re.MULTILINE)
    names = [each.removeprefix("acct_gather_energy/") for each in (shown[1].split(",") if shown else ())]
    return [each for each in names if each not in ("none", "(null)")]


def consumed_energy(steps: Sequence[str], cluster: str | None) -> dict[str, int] | None:
    """Return the energy in joules of each job step (``JOB.STEP``) for which the accounting database has a value.

    Returns None if the database does not respond.
    """
    fields = ("--noheader", "--parsable2", "--format=JobID,ConsumedEnergyRaw")
    found: dict[str, int] = {}
    for some in batches(steps):
        printed = _answer("sacct", *fields, f"--jobs={','.join(some)}", *on(cluster))
        if printed is None:
            return None
        for line in printed.splitlines():
            step, _, joules = line.partition("|")
            # Slurm prints 0 or 2^64 - 2 if it has no value.
            if step in steps and joules.isdecimal() and 0 < int(joules) < 2**63:
                found[step] = int(joules)
    return found


def on(cluster: str | None) -> list[str]:
    """Return the option that selects a cluster, or no option for the default cluster."""
    return [] if cluster is None else [f"--clusters={cluster}"]


def parse(lines: Iterable[str]) -> list[SlurmJob]:
    """Parse the output of ``squeue`` or ``sacct``, merging the parts of an array or a heterogeneous job."""
    parts: dict[str, list[SlurmJob]] = {}
    for line in lines:
        values = line.split("|", len(_FIELDS) - 1)
        number = re.match(r"\d+", values[0])
        if len(values) == len(_FIELDS) and number:
            shown = ("" if value in _NOTHING else value for value in values)
            fields = {name: value for (_, name), value in zip(_FIELDS, shown, strict=True)}
            parts.setdefault(number.group(), []).append(_job(number.group(), fields))
    return [min(jobs, key=lambda job: _ORDER.index(job.state)) for jobs in parts.values()]


def state_of(text: str) -> State:
    """Parse a state, such as ``TIMEOUT``, ``CANCELLED by 1000`` or ``COMPLETING+``. Unknown states count as RUNNING."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    return _BY_WORD.get(first.rstrip("+").upper(), State.RUNNING)


def minutes(limit: str) -> float | None:
    """Parse a time limit, ``days-hours:minutes:seconds`` or ``minutes:seconds``. Returns None if there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, mins, secs = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + secs / 60


def _job(id: str, fields: Mapping[str, str]) -> SlurmJob:
    state = state_of(fields["State"])
    ended = _parse_time(fields["End"])
    if ended is None and state.is_final:
        ended = 0.0  # without an end time, the job counts as having ended long ago
    return SlurmJob(
        id=id,
        state=state,
        word=fields["State"],
        mark=fields["WorkDir"],
        reason=_reason(id, state, fields),
        ended=ended,
        started=_parse_time(fields["Start"]) if state is not State.PENDING else None,
        ending=fields["State"].startswith("COMPLETING"),
        why=fields["Reason"],
        nodes=fields["NNodes"],
        limit=fields["Timelimit"],
        partition=fields["Partition"],
    )


def _parse_time(text: str) -> float | None:
    """Parse a local time into seconds since the epoch. Returns None if it is missing."""
    with suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    return None


def _reason(id: str, state: State, fields: Mapping[str, str]) -> str:
    """Format the reason for a state, to the extent that Slurm reports it."""
    word, why = fields["State"], fields["Reason"]
    if state is State.PENDING:
        if why in _HELD:
            return f"{why}: {_HELD[why].format(id=id)}"
        start = f", expected to start at {fields['Start']}" if fields["Start"] else ""
        return (why if word.startswith("PENDING") else f"{word} {why}".strip()) + start
    if state is State.RUNNING:
        return "" if word == "RUNNING" else word
    if state is State.COMPLETED:
        return ""
    limit = f"time limit {fields['Timelimit']}" if state is State.TIMEOUT and fields["Timelimit"] else ""
    hosts = f"on {fields['NodeList']}" if state is State.NODE_FAIL and fields["NodeList"] else ""
    return ", ".join(filter(None, (word, "" if why == "TimeLimit" else why, limit, hosts)))


#: Environment variables that contain users' default values for sbatch options. Because sbatch would prefer them to the
#: script, they are only passed for options that the script does not set. Other SBATCH_ variables are never passed.
_DEFAULTS = {
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "partition": "SBATCH_PARTITION",
    "clusters": "SBATCH_CLUSTERS",
    "wckey": "SBATCH_WCKEY",
}
_PARTITION_SECONDS = 60
_UNKNOWN = "Invalid job id"
#: sbatch options that salloc does not have.
_OF_SCRIPTS = ("--output", "--error", "--open-mode", "--export", "--requeue", "--no-requeue", "--input", "-o", "-e")
#: A step on the first node that leaves all resources to the steps that are started within it.
_FIRST_NODE = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none")


class SlurmBackend(Backend):
    """Slurm, where a job is identified by the directory it was submitted from."""

    traits = SYSTEMS["slurm"]
    programs = PROGRAMS
    grace_seconds = 15.0
    first_interval = 0.5
    end_seconds = 90.0  # KillWait (30 by default) between SIGTERM and SIGKILL; an epilog may follow

    def __init__(self) -> None:
        self._answered = False

    def hint(self) -> str:
        # The command that restarts hidl's test cluster, if the jobs run there.
        return hidl_cluster.line_that_helps() or super().hint()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return header(allocation, policies)

    def this_cluster(self) -> str | None:
        return this_cluster()

    def reaches(self, cluster: str) -> bool:
        return True  # --clusters selects any cluster of the same accounting database

    def ping(self) -> None:
        ping()
        learn_cluster()  # PATH or the configuration may lead to a different cluster than last time

    def submit(self, run: Run) -> Receipt | None:
        given = options_of(run.script)
        completed = call(
            "sbatch", "--parsable", run.script, timeout=SUBMIT_SECONDS, cwd=run.directory, keep=_defaults(given)
        )
        if completed.status != 0:
            self._refuse(completed, given)
        # The site's submit filter may print additional text before or after the id.
        printed = re.search(r"^(\d+)(?:;(\S+))?\s*$", completed.stdout, re.MULTILINE)
        return Receipt(printed[1], printed[2]) if printed else None

    def check(self, run: Run) -> None:
        given = options_of(run.script)
        completed = call("sbatch", "--test-only", run.script, cwd=run.directory, keep=_defaults(given))
        if completed.status != 0:
            self._refuse(completed, given)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """Return an ``salloc`` command that runs the job script as a step. The allocation ends with the step."""
        words = options(header, "#SBATCH", without=_OF_SCRIPTS)
        variables = hidl_cluster.environment()
        given = {word.partition("=")[0] for word in words}
        users = [
            f"--{option}={variables[variable]}"
            for option, variable in _DEFAULTS.items()
            if variable in variables and f"--{option}" not in given
        ]
        step = (*_FIRST_NODE, "--preserve-env", *(("--pty",) if terminal else ()))
        return ("salloc", *words, *users, *step, "bash", "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        if not self._answered and cluster is None:  # scontrol cannot reach the controllers of other clusters
            ping()  # fails immediately if no controller listens, while squeue needs ten seconds
        self._answered = False
        completed = call(*squeue(cluster))
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        self._answered = True
        return whole_lines(completed)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        return list(parse(lines))

    def kill(self, id: str, cluster: str | None) -> None:
        completed = call("scancel", *on(cluster), id)
        if completed.status != 0 and _UNKNOWN not in completed.stderr:
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """Return the jobs in the accounting database. Raises ``NoAnswer`` if there is no database."""
        known = [id for id in ids if id is not None]
        found = [job for some in batches(known) for job in self._accounted(sacct(cluster, ids=some))]
        return found + (self._accounted(sacct(cluster, since=since)) if len(known) < len(ids) else [])

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        queries = [squeue(cluster, id=id), ["scontrol", *on(cluster), "show", "job", id]]
        for command in queries:  # scontrol is needed if squeue neither lists the job nor calls its id invalid
            completed = call(*command)
            if completed.status != 0 and _UNKNOWN in completed.stderr:
                return None
            if completed.status != 0:
                raise NoAnswer(complaint(completed))
            if command is queries[0] and (found := list(parse(whole_lines(completed)))):
                return found[0]
        raise NoAnswer(f"squeue prints nothing about job {id}")

    def never_starts(self, job: Job) -> StartBlocker | None:
        assert isinstance(job, SlurmJob)
        return never_starts(job, lambda name: _partition(name, int(time.time() / _PARTITION_SECONDS)))

    @staticmethod
    def _refuse(completed: Completed, given: Mapping[str, str]) -> NoReturn:
        error = complaint(completed)
        fact, hint = explain(error, given)
        raise Refused(error, hint=hint, fact=fact)

    @staticmethod
    def _accounted(command: list[str]) -> list[Job]:
        completed = call(*command, timeout=ACCOUNTING_SECONDS)
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        return list(parse(whole_lines(completed)))


def _defaults(given: Mapping[str, str]) -> list[str]:
    """Return the variables that contain the user's default values for options that the script does not set."""
    return [variable for option, variable in _DEFAULTS.items() if option not in given]


@lru_cache(maxsize=64)
def _partition(name: str, minute: int) -> Mapping[str, str]:
    """Return the partition, queried at most once a minute."""
    return partition(name)


BACKEND = SlurmBackend

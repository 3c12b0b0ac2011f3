"""Slurm: ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

from __future__ import annotations

import hashlib
import math
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
from hidl_cli.record.run import Run, State
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
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.site import hidl_cluster
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
    """Return if a controller answers; raises ``NoAnswer``, within seconds, if none does.

    ``scontrol ping`` returns at once if nothing listens, for which other programs need ten to twenty seconds.
    """
    completed = call("scontrol", "ping", timeout=PING_SECONDS)
    if " is UP" in completed.stdout or (completed.status == 0 and "DOWN" not in completed.stdout):
        return
    raise NoAnswer((completed.stdout.strip() or complaint(completed)).splitlines()[0])


def accounting_answers() -> bool:
    """Whether ``sacct`` answers; without it ReFrame's scheduler `slurm` fails after three tries."""
    try:
        completed = call("sacct", "--noheader", "--starttime=now", "--format=jobid", timeout=ACCOUNTING_SECONDS)
    except NoAnswer:
        return False
    return completed.status == 0


def keys(text: str) -> dict[str, str]:
    """Parse ``Key=value`` words, as ``scontrol show`` prints them; a value ends at the next key."""
    return dict(re.findall(r"([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", text, re.MULTILINE))


def partition(name: str) -> dict[str, str]:
    """Return what ``scontrol show partition`` says; empty if unavailable."""
    return _shown("scontrol", "show", "partition", name)


@cache
def this_cluster() -> str | None:
    """Return the name of the cluster; None if Slurm does not answer and has not within the last day."""
    file = _file_of_name()
    if file in _LEARNED:
        return _LEARNED[file]
    with suppress(OSError):
        if time.time() - file.stat().st_mtime < _NAME_VALID_SECONDS:
            return file.read_text(encoding="utf-8")
    return _ask_for_name(file)


def learn_cluster() -> None:
    """Ask Slurm for the cluster's name, which ``this_cluster`` returns from now on."""
    file = _file_of_name()
    name = _ask_for_name(file)
    if name is not None:
        _LEARNED[file] = name
        this_cluster.cache_clear()


def _file_of_name() -> Path:
    """Return where the name is kept: clusters may share a user's home, and PATH may lead to another's programs."""
    variables = hidl_cluster.environment()
    programs = shutil.which("scontrol", path=variables.get("PATH")) or ""
    parts = [platform.node(), programs, *(variables.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return paths.user_state() / "slurm" / f"cluster-{key}"


def _ask_for_name(file: Path) -> str | None:
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


# Why a job waits, and whether it would wait for ever.


#: As things stand, a job with one of these never starts: what it requests is allowed nowhere.
_FOR_EVER = {
    "BadConstraints": "no node meets its request",
    "DependencyNeverSatisfied": "the job that it depends on did not end as required",
    "InvalidAccount": "the account is not one that may be used here",
    "InvalidQOS": "the quality of service is not one that may be used here",
    "QOSNotAllowed": "the quality of service is not allowed in this partition",
    "AccountNotAllowed": "the account is not allowed in this partition",
    "ReservationDeleted": "the reservation is gone",
    "MaxRequeueExceeded": "it was requeued as often as the site allows",
    "MaxMemPerLimit": "it requests more memory than the site allows",
    "QOSTimeLimit": "it requests more time than the quality of service allows",
    "AssociationTimeLimit": "it requests more time than the account allows",
}
#: Seconds for which these must have stood. Nodes of a cloud have constraints that are met once they are up again, and a
#: controller that starts before its database knows no account.
_AFTER = {"BadConstraints": 600.0, "InvalidAccount": 60.0, "InvalidQOS": 60.0}
#: The per-job limits of accounts and qualities of service (AssocMaxWallDurationPerJobLimit, QOSMinGRES, ...). Limits on
#: all jobs of a user or an account together (AssocMaxJobsLimit, QOSMaxNodePerUserLimit, AssocGrp...) pass.
_PER_JOB_LIMIT = re.compile(r"(Assoc|QOS)(Max\w*Per(Job|Node)\w*|MaxWallDuration\w*|Min\w+)")

_UNLIMITED = frozenset(("", "UNLIMITED", "INFINITE", "(null)"))


def never_starts(job: SlurmJob, partition: Callable[[str], Mapping[str, str]]) -> Never | None:
    """Why a pending job would never start as things stand, with the limit and its value; None where it may start.

    ``partition`` gives what ``scontrol show partition`` says. What Slurm calls a partition's limit is believed only
    where the partition's numbers show it: the same words stand for nodes that are merely down.
    """
    reason = re.split(r"[\s,(]", job.why, maxsplit=1)[0]
    if reason in ("PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig"):
        beyond = _beyond(job, partition(job.partition))
        return Never(f"{reason}: {beyond}") if beyond else None
    if reason in _FOR_EVER:
        return Never(f"{reason}: {_FOR_EVER[reason]}", after=_AFTER.get(reason, 0.0))
    return Never(f"{reason}: it is beyond a limit on single jobs") if _PER_JOB_LIMIT.fullmatch(reason) else None


def limits(name: str, partition: Mapping[str, str]) -> str:
    """A partition's limits in words."""
    known = {key: partition.get(key, "") for key in ("MinNodes", "MaxNodes", "TotalNodes", "MaxTime")}
    words = ", ".join(f"{key}={value}" for key, value in known.items() if value not in _UNLIMITED and value != "0")
    return f"partition {name} allows {words}" if words else ""


def _beyond(job: SlurmJob, partition: Mapping[str, str]) -> str | None:
    """Which of the partition's limits the job is beyond."""
    nodes = int(job.nodes) if job.nodes.isdecimal() else 0
    for key in ("MaxNodes", "TotalNodes"):
        if partition.get(key, "").isdecimal() and nodes > int(partition[key]):
            return f"{nodes} nodes asked for, and partition {job.partition} has {key}={partition[key]}"
    if partition.get("MinNodes", "").isdecimal() and nodes < int(partition["MinNodes"]):
        return f"{nodes} node(s) asked for, and partition {job.partition} has MinNodes={partition['MinNodes']}"
    asked, most = minutes(job.limit), minutes(partition.get("MaxTime", ""))
    if most is not None and (asked is None or asked > most):
        limit = job.limit or "no time limit"
        return f"{limit} asked for, and partition {job.partition} has MaxTime={partition['MaxTime']}"
    return None


# What sbatch refuses, with the value that the site has, and the next step.


_Asked = Mapping[str, str]


def explain(words: str, asked: _Asked) -> tuple[str | None, str]:
    """The site's value that ``words`` are about, if it can be had, and what to do; ``asked``: the script's options."""
    for pattern, fact, hint in _CASES:
        if re.search(pattern, words, re.IGNORECASE):
            return fact(asked) or None, hint
    return None, "the words are sbatch's; the script is job.sh in the run's directory (sbatch --test-only job.sh)"


def _partitions(_: _Asked) -> str:
    return _listed("the partitions here", "sinfo", "--noheader", "--all", "--format=%R")


def _limits(asked: _Asked) -> str:
    name = asked.get("partition") or _default_partition()
    return limits(name, partition(name)) if name else ""


def _accounts(_: _Asked) -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    return _listed(
        "your accounts here", "sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}", "format=account"
    )


def _qualities(_: _Asked) -> str:
    return _listed(
        "the qualities of service here", "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"
    )


def _features(_: _Asked) -> str:
    return _listed("the features of nodes here", "sinfo", "--noheader", "--all", "--format=%f")


def _gres(_: _Asked) -> str:
    return _listed("generic resources of nodes here", "sinfo", "--noheader", "--all", "--format=%G")


def _reservations(_: _Asked) -> str:
    try:
        completed = call("scontrol", "show", "reservation", "--oneliner", timeout=PING_SECONDS)
    except NoAnswer:
        return ""
    names = re.findall(r"ReservationName=(\S+)", completed.stdout)
    return f"the reservations here: {', '.join(names) or 'none'}"


_CASES: tuple[tuple[str, Callable[[_Asked], str], str], ...] = (
    (r"partition name|invalid partition", _partitions, "--partition NAME, or correct `queue` in the site's file"),
    (r"node count|too many nodes", _limits, "request fewer nodes (--nodes), or another partition (--partition)"),
    (r"time limit", _limits, "request less time (--time), or another partition (--partition)"),
    (r"account", _accounts, "--account NAME"),
    (r"qos", _qualities, "--qos NAME"),
    (r"feature", _features, "--constraint NAME"),
    (r"reservation", _reservations, "--reservation NAME"),
    (r"generic resource|gres", _gres, "`policies.gpus` in the site's file says how GPUs are asked for here"),
    (r"memory", _limits, "`policies.memory` in the site's file says how memory is asked for here"),
    (
        r"processors requested|node configuration",
        _limits,
        "fewer nodes (--nodes) or ranks on each (--ranks-per-node), or another partition (--partition)",
    ),
)


def _default_partition() -> str | None:
    """The partition that takes jobs which name none; sinfo marks it with a star."""
    names = re.findall(r"^(\S+)\*$", _answer("sinfo", "--noheader", "--format=%P"), re.MULTILINE)
    return names[0] if names else None


def _listed(title: str, *command: str) -> str:
    names = sorted({line.strip() for line in _answer(*command).splitlines()} - {"", "(null)"})
    return f"{title}: {', '.join(names)}" if names else ""


def _answer(*command: str) -> str:
    """What a program prints, where it answers in time: the refusal stands without it."""
    try:
        completed = call(*command, timeout=ACCOUNTING_SECONDS)
    except NoAnswer:
        return ""
    return completed.stdout if completed.status == 0 else ""


# The ``#SBATCH`` lines at the top of a job script.


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
    """The lines that ask for ``allocation`` in the forms that the site accepts; the site's own directives come last.

    No signal is asked for: when the time limit is reached, and when a job is cancelled, Slurm sends SIGTERM to the
    batch script too, whose trap has ``KillWait`` seconds to record the end. A signal ahead of the limit would end the
    job early, and Slurm would call it FAILED rather than TIMEOUT.
    """
    tasks = 1 if allocation.cores_per_node else allocation.ranks_per_node  # srun may start more, if their cores suffice
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
        "nodes": allocation.nodes,
        "ntasks-per-node": tasks if policies.tasks == "ntasks-per-node" else None,
        **_cpus(allocation, policies),
        **_memory(allocation, policies),
        **_gpus(allocation, policies),
        "export": {"all": "ALL", "none": "NONE", "never": None}[policies.export],
        # Relative to the directory that the job is submitted from, the run's; a job that is requeued goes on writing.
        "output": "stdout.log",
        "error": "stderr.log",
        "open-mode": "append",
    }
    lines = [f"--{name}={_word(str(value))}" for name, value in options.items() if value is not None]
    exclusive = ["--exclusive"] if policies.exclusive else []
    return tuple(f"#SBATCH {line}" for line in (*lines, *exclusive, *policies.directives))


def options_of(script: Path) -> dict[str, str]:
    """What a job script asks for, by the long names of the options; ``OSError`` where it cannot be read."""
    found: dict[str, str] = {}
    for line in script.read_text(encoding="utf-8").splitlines():
        match = _OPTION.match(line)
        if match:
            name = match["long"] or _SHORT.get(match["short"], match["short"])
            found[name] = (match["value"] or "").strip().strip('"')
    return found


def _time(seconds: float | None) -> str | None:
    """Slurm counts time limits in whole minutes, and rounds up."""
    if seconds is None:
        return None
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _cpus(allocation: Allocation, policies: Policies) -> dict[str, int]:
    """Slurm counts hardware threads, unless it is told to use one of each core: its srun takes that over."""
    cores = allocation.cores_per_node or allocation.cores_per_rank
    if policies.cpus == "none" or cores is None:
        return {}
    several = (allocation.threads_per_core or 1) > 1
    return {"cpus-per-task": cores, **({"threads-per-core": 1} if several else {})}


def _memory(allocation: Allocation, policies: Policies) -> dict[str, str]:
    """``--mem=0`` means all of the node's memory; where it is not known, nothing can be said of a core's share."""
    gib = allocation.memory_gib
    if policies.memory == "all":
        return {"mem": "0"}
    if policies.memory == "mem":
        return {"mem": "0" if gib is None else f"{int(gib * 1024)}M"}
    if policies.memory == "mem-per-cpu" and gib is not None:
        cores = allocation.cores_per_node or allocation.ranks_per_node * (allocation.cores_per_rank or 1)
        return {"mem-per-cpu": f"{int(gib * 1024 / cores)}M"}
    return {}


def _gpus(allocation: Allocation, policies: Policies) -> dict[str, str]:
    number = allocation.gpus_per_node
    if not number or policies.gpus == "none":
        return {}
    return {"gres": f"gpu:{number}"} if policies.gpus == "gres" else {"gpus-per-node": str(number)}


def _word(value: str) -> str:
    """``value`` as sbatch reads one word of such a line: in quotes where it holds a blank, a quote or a ``#``."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Jobs as Slurm describes them: the queries, and how the answers are read.


#: squeue's and sacct's names of the same fields. The last may hold the separator. ``--json`` is not used: it ignores
#: filters, and differs between versions.
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

#: Slurm's words for a state. ExitCode says nothing: it is 0:0 after a time-out. The order is that of parts of one job
#: (an array, a heterogeneous job): the first speaks for all.
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


#: What lets a held job go on (squeue(1), "JOB REASON CODES").
_HELD = {
    "JobHeldUser": "scontrol release {id} lets it start",
    "JobHeldAdmin": "an administrator of the site has to release it",
    "launch failed requeued held": "its node could not start it; scontrol release {id} lets it try again",
    "job requeued in held state": "scontrol release {id} lets it start again",
}


@dataclass(frozen=True)
class SlurmJob(Job):
    """``mark`` is the directory that it was submitted from. What it asked for, in Slurm's form; empty if not told."""

    why: str = ""
    nodes: str = ""
    limit: str = ""
    partition: str = ""


def squeue(cluster: str | None, *, id: str | None = None) -> list[str]:
    """Return the command that lists the job ``id``; None: all jobs of the user.

    It lists jobs that ended lately, too, and those in hidden partitions.
    """
    shape = f"--format={'|'.join(short for short, _ in _FIELDS)}"
    chosen = f"--user={os.getuid()}" if id is None else f"--jobs={id}"
    return ["squeue", "--noheader", "--all", "--noconvert", "--states=all", chosen, shape, *on(cluster)]


def sacct(cluster: str | None, *, ids: Sequence[str] = (), since: float | None = None) -> list[str]:
    """Return the command that lists jobs from the accounting: of these ids, or all of the user's since (seconds)."""
    shape = f"--format={','.join(long for _, long in _FIELDS)}"
    words = ["sacct", "--allocations", "--noheader", "--parsable2", shape]
    if ids:
        words.append(f"--jobs={','.join(ids)}")
    if since is not None:
        words.append(f"--starttime={datetime.fromtimestamp(since):%Y-%m-%dT%H:%M:%S}")
    return words + on(cluster)


def on(cluster: str | None) -> list[str]:
    """Return the option that names another cluster than the programs' own."""
    return [] if cluster is None else [f"--clusters={cluster}"]


def parse(lines: Iterable[str]) -> list[SlurmJob]:
    """Parse the answer of ``squeue`` or ``sacct``; the parts of an array or of a heterogeneous job are one."""
    parts: dict[str, list[SlurmJob]] = {}
    for line in lines:
        values = line.split("|", len(_FIELDS) - 1)
        number = re.match(r"\d+", values[0])
        if len(values) == len(_FIELDS) and number:
            shown = ("" if value in _NOTHING else value for value in values)
            fields = {name: value for (_, name), value in zip(_FIELDS, shown, strict=True)}
            parts.setdefault(number.group(), []).append(_job(number.group(), fields))
    return [min(jobs, key=lambda job: _ORDER.index(job.state)) for jobs in parts.values()]


def state_of(words: str) -> State:
    """Return the state that Slurm names: ``TIMEOUT``, ``CANCELLED by 1000``, ``COMPLETING+``.

    An unknown word counts as RUNNING: a job ends only by a word that says so.
    """
    first = words.split(maxsplit=1)[0] if words.strip() else ""
    return _BY_WORD.get(first.rstrip("+").upper(), State.RUNNING)


def minutes(limit: str) -> float | None:
    """Parse a time limit in Slurm's form, ``days-hours:minutes:seconds`` or ``minutes:seconds``; None: no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, mins, secs = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + secs / 60


def _job(id: str, told: Mapping[str, str]) -> SlurmJob:
    state = state_of(told["State"])
    ended = _time_of_jobs(told["End"])
    if ended is None and state.is_final:
        ended = 0.0  # no time told: long ago
    return SlurmJob(
        id=id,
        state=state,
        word=told["State"],
        mark=told["WorkDir"],
        reason=_reason(id, state, told),
        ended=ended,
        started=_time_of_jobs(told["Start"]) if state is not State.PENDING else None,
        ending=told["State"].startswith("COMPLETING"),
        why=told["Reason"],
        nodes=told["NNodes"],
        limit=told["Timelimit"],
        partition=told["Partition"],
    )


def _time_of_jobs(told: str) -> float | None:
    """Parse a time, in seconds since the epoch; None if not told."""
    with suppress(ValueError):
        return datetime.fromisoformat(told).timestamp()
    return None


def _reason(id: str, state: State, told: Mapping[str, str]) -> str:
    """Format Slurm's word for the state, with what it says beside."""
    word, why = told["State"], told["Reason"]
    if state is State.PENDING:
        if why in _HELD:
            return f"{why}: {_HELD[why].format(id=id)}"
        start = f", expected to start at {told['Start']}" if told["Start"] else ""
        return (why if word.startswith("PENDING") else f"{word} {why}".strip()) + start
    if state is State.RUNNING:
        return "" if word == "RUNNING" else word
    if state is State.COMPLETED:
        return ""
    limit = f"time limit {told['Timelimit']}" if state is State.TIMEOUT and told["Timelimit"] else ""
    hosts = f"on {told['NodeList']}" if state is State.NODE_FAIL and told["NodeList"] else ""
    return ", ".join(filter(None, (word, "" if why == "TimeLimit" else why, limit, hosts)))


#: Defaults that users keep in their environment, by the option that they stand for. sbatch lets them win over the
#: script, so they hold only where the script says nothing; other SBATCH_ variables never do.
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
#: Options of sbatch that salloc does not have.
_OF_SCRIPTS = ("--output", "--error", "--open-mode", "--export", "--requeue", "--no-requeue", "--input", "-o", "-e")
#: A step on the first node that takes nothing away from those that are started within it.
_FIRST_NODE = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none")


class Slurm(Backend):
    """Jobs are recognized by the directory that they were submitted from."""

    traits = SYSTEMS["slurm"]
    programs = PROGRAMS
    grace_seconds = 15.0
    first_interval = 0.5
    end_seconds = 90.0  # KillWait (30 by default) between SIGTERM and SIGKILL; an epilog may follow

    def __init__(self) -> None:
        self._answered = False

    def hint(self) -> str:
        """See ``Backend``: the line that brings hidl's own cluster up again, if it is that one."""
        return hidl_cluster.line_that_helps() or super().hint()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header(allocation, policies)

    def this_cluster(self) -> str | None:
        """See ``Backend``."""
        return this_cluster()

    def reaches(self, cluster: str) -> bool:
        """See ``Backend``: ``--clusters`` names any cluster of the same accounting."""
        return True

    def ping(self) -> None:
        """See ``Backend``; the name may be of another cluster than the last time, by PATH or configuration."""
        ping()
        learn_cluster()

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``."""
        asked = options_of(run.script)
        completed = call(
            "sbatch",
            "--parsable",
            run.script,
            timeout=SUBMIT_SECONDS,
            cwd=run.directory,
            keep=_defaults(asked),
        )
        if completed.status != 0:
            self._refuse(completed, asked)
        # A site's filter may print more, before or after.
        printed = re.search(r"^(\d+)(?:;(\S+))?\s*$", completed.stdout, re.MULTILINE)
        return Receipt(printed[1], printed[2]) if printed else None

    def check(self, run: Run) -> None:
        """See ``Backend``: ``sbatch --test-only`` refuses what sbatch refuses."""
        asked = options_of(run.script)
        completed = call("sbatch", "--test-only", run.script, cwd=run.directory, keep=_defaults(asked))
        if completed.status != 0:
            self._refuse(completed, asked)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Backend``: ``salloc``, whose end is the allocation's end, and a step in it."""
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
        """See ``Backend``."""
        if not self._answered and cluster is None:  # scontrol knows nothing of another's controller
            ping()  # returns at once if nothing listens, for which squeue needs ten seconds
        self._answered = False
        completed = call(*squeue(cluster))
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        self._answered = True
        return whole_lines(completed)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return list(parse(lines))

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        completed = call("scancel", *on(cluster), id)
        if completed.status != 0 and _UNKNOWN not in completed.stderr:
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``: the accounting, where there is one."""
        known = [id for id in ids if id is not None]
        found = [job for some in batches(known) for job in self._accounted(sacct(cluster, ids=some))]
        return found + (self._accounted(sacct(cluster, since=since)) if len(known) < len(ids) else [])

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        asked = [squeue(cluster, id=id), ["scontrol", *on(cluster), "show", "job", id]]
        for command in asked:  # scontrol, if squeue neither lists the job nor calls its id invalid
            completed = call(*command)
            if completed.status != 0 and _UNKNOWN in completed.stderr:
                return None
            if completed.status != 0:
                raise NoAnswer(complaint(completed))
            if command is asked[0] and (found := list(parse(whole_lines(completed)))):
                return found[0]
        raise NoAnswer(f"squeue prints nothing about job {id}")

    def never_starts(self, job: Job) -> Never | None:
        """See ``Backend``."""
        assert isinstance(job, SlurmJob)
        return never_starts(job, lambda name: _partition(name, int(time.time() / _PARTITION_SECONDS)))

    @staticmethod
    def _refuse(completed: Completed, asked: Mapping[str, str]) -> NoReturn:
        words = complaint(completed)
        fact, hint = explain(words, asked)
        raise Refused(words, hint=hint, fact=fact)

    @staticmethod
    def _accounted(command: list[str]) -> list[Job]:
        completed = call(*command, timeout=ACCOUNTING_SECONDS)
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        return list(parse(whole_lines(completed)))


def _defaults(asked: Mapping[str, str]) -> list[str]:
    """Return the user's defaults that hold: those of options that the script does not give."""
    return [variable for option, variable in _DEFAULTS.items() if option not in asked]


@lru_cache(maxsize=64)
def _partition(name: str, minute: int) -> Mapping[str, str]:
    """Ask once a minute."""
    return partition(name)


BACKEND = Slurm

"""Probe LSF with ``lsid``, ``bqueues -l``, ``bparams``, ``lshosts -w`` and ``bhosts -w``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hidl_cli.site.probes.facts import Hardware, ProbedNode, Queue, SchedulerFacts
from hidl_cli.site.probes.host import Host, split_blocks

_SECONDS = 30.0
IDENTITY = ("lsid",)
QUEUES = ("bqueues", "-l")
PARAMETERS = ("bparams",)
RUNNING = ("bhosts", "-w")
HOSTS = ("lshosts", "-w")
_CLUSTER = re.compile(r"^My cluster name is (\S+)\s*$", re.MULTILINE)
_VERSION = re.compile(r"\bLSF\b[^\n]*?\s(\d+(?:\.\d+)+)")
_DEFAULT_QUEUES = re.compile(r"^Default Queues:\s*(\S+)", re.MULTILINE)
_QUEUE = re.compile(r"^QUEUE:\s*(\S+)\s*$", re.MULTILINE)
_LIMITS = re.compile(r"^(DEFAULT|MAXIMUM) LIMITS:\s*$", re.MULTILINE)
_SECTION = re.compile(r"^[A-Z][A-Z /_-]*:", re.MULTILINE)  # the section after a queue's limits
_LIMIT = re.compile(r"[A-Z]+LIMIT")
_MINUTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*min(?:\s+of\s+(\S+))?")
#: Meanings of the numbers in a limit, which depend on how many there are (bqueues(1), "PROCLIMIT").
_OF_TASKS = {1: ("maximum",), 2: ("minimum", "maximum"), 3: ("minimum", "default", "maximum")}
_USERS = re.compile(r"^USERS:\s*(.*\S)\s*$", re.MULTILINE)
_HOSTS = re.compile(r"^HOSTS:\s*(.*\S)\s*$", re.MULTILINE)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIRED = re.compile(r"^RES_REQ:.*(span\[[^\]\n]{0,200}\])", re.MULTILINE)
_EXCLUSIVE = re.compile(r"^SCHEDULING POLICIES:.*\bEXCLUSIVE\b", re.MULTILINE)
_SLOTS = re.compile(r"^\s*PRIO\s+NICE\s+STATUS\s+MAX\s+JL/U\b.*\n\s*\S+\s+\S+\s+\S+\s+(\S+)\s+(\S+)", re.MULTILINE)
_STATUS = re.compile(r"\b(Open|Closed):(Active|Inact\w*)")
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def probe(host: Host) -> SchedulerFacts | None:
    """Probe LSF. Returns None if there is no ``lsid``. LSF does not report the number of cores available to jobs."""
    if host.which("lsid") is None:
        return None
    identity = host.ask(*IDENTITY, seconds=_SECONDS)
    if not identity:
        return SchedulerFacts("lsf")
    return describe(
        identity=identity,
        queues=host.ask(*QUEUES, seconds=_SECONDS),
        parameters=host.ask(*PARAMETERS, seconds=_SECONDS),
        running=host.ask(*RUNNING, seconds=_SECONDS),
        hosts=host.ask(*HOSTS, seconds=_SECONDS),
    )


def describe(
    *,
    identity: str | None = None,
    queues: str | None = None,
    parameters: str | None = None,
    running: str | None = None,
    hosts: str | None = None,
) -> SchedulerFacts:
    """Describe LSF, given its commands' output. Pass None for a command that was not run or printed nothing."""
    cluster, version = _CLUSTER.search(identity or ""), _VERSION.search(identity or "")
    default = _DEFAULT_QUEUES.search(parameters or "")
    found = tuple(_queues(queues or "", default[1] if default else None))
    nodes = tuple(_nodes(running, hosts, tuple(queue.name for queue in found)))
    remark = "hosts of queues are unknown, so each queue is drafted with all hosts"
    return SchedulerFacts(
        "lsf",
        version=version[1] if version else None,
        cluster=cluster[1] if cluster else None,
        nodes=nodes or tuple(_named(queues or "")),
        queues=found,
        sources=("lsid", "bqueues -l", "bparams", "lshosts -w", "bhosts -w"),
        remarks=(remark,) if nodes and found else (),
    )


def _named(text: str) -> Iterator[ProbedNode]:
    """Yield the hosts that queues name individually. The members of host groups and patterns are unknown."""
    queues: dict[str, list[str]] = {}
    for name, block in split_blocks(_QUEUE, text):
        its = _HOSTS.search(block)
        for word in its[1].split() if its else ():
            host = word.partition("+")[0]
            if _HOST.fullmatch(host) and host not in ("all", "none", "others"):
                queues.setdefault(host, []).append(name)
    for host, names in queues.items():
        yield ProbedNode(host, Hardware(), queues=tuple(dict.fromkeys(names)))


def _queues(text: str, default: str | None) -> Iterator[Queue]:
    for name, block in split_blocks(_QUEUE, text):
        users, status = _USERS.search(block), _STATUS.search(block)
        default_limits, limits = _limits(block)
        wall = _MINUTES.match(limits.get("RUNLIMIT", ""))
        remarks = [f"USERS: {users[1]}"] if users and users[1] != "all" else []
        remarks += [f"{name} {_format_limit(name, value)}" for name, value in limits.items() if name != "RUNLIMIT"]
        if "RUNLIMIT" in default_limits:
            remarks.append(f"default RUNLIMIT {default_limits['RUNLIMIT']}: for jobs without a time limit")
        if wall and wall[2]:
            remarks.append(f"RUNLIMIT {wall[0]}: scaled by a host's speed, so the actual limits differ")
        if slots := _SLOTS.search(block):
            limits_of_slots = (("MAX", slots[1], "limit on job slots"), ("JL/U", slots[2], "limit on slots per user"))
            remarks += [f"{title} {value}: {what}" for title, value, what in limits_of_slots if value.isdecimal()]
        if required := _REQUIRED.search(block):
            remarks.append(f"RES_REQ {required[1]}")
        if _EXCLUSIVE.search(block):
            remarks.append("EXCLUSIVE: jobs can request whole hosts (bsub -x)")
        if status and status[0] != "Open:Active":
            remarks.append(f"STATUS {status[0]}")
        yield Queue(
            name,
            is_default=name == default,
            max_wall=_wall(float(wall[1])) if wall and not wall[2] else None,
            restricted=bool(users and not {"all", "all users"} & {users[1]}),
            remarks=tuple(remarks),
        )


def _limits(block: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return a queue's default and maximum limits by name. Limits without a title are maximum limits.

    A line with the limits' names is followed by one with their values.
    """
    found: dict[str, dict[str, str]] = {"DEFAULT": {}, "MAXIMUM": {}}
    starts = [(0, 0, "MAXIMUM"), *((each.start(), each.end(), each[1]) for each in _LIMITS.finditer(block))]
    ends = [start for start, _, _ in starts[1:]] + [len(block)]
    for (_, begin, title), end in zip(starts, ends, strict=True):
        part = block[begin:end]
        other = _SECTION.search(part) if begin else None
        lines = (part[: other.start()] if other else part).splitlines()
        for names, values in pairwise(lines):
            columns = list(_LIMIT.finditer(names))
            if not columns or _LIMIT.sub("", names).strip():
                continue
            stops = [column.start() for column in columns[1:]] + [None]
            for column, stop in zip(columns, stops, strict=True):
                start = 0 if column is columns[0] else column.start()
                if value := values[start:stop].strip():
                    found[title].setdefault(column[0], value)
    return found["DEFAULT"], found["MAXIMUM"]


def _format_limit(name: str, value: str) -> str:
    numbers = value.split()
    if name in ("PROCLIMIT", "TASKLIMIT") and len(numbers) in _OF_TASKS:
        return ", ".join(f"{word} {number}" for word, number in zip(_OF_TASKS[len(numbers)], numbers, strict=True))
    return value


def _nodes(running: str | None, hosts: str | None, queues: tuple[str, ...]) -> Iterator[ProbedNode]:
    """Yield each host that runs jobs (``bhosts -w``), along with what ``lshosts -w`` prints for it.

    The output of either command may be missing. Hosts with a limit of 0 jobs are skipped. If some hosts are marked as
    compute nodes (resource ``CN`` on IBM's CORAL systems, where ``LN`` marks launch nodes), all others are skipped too.
    ``ncpus`` is ignored because it counts processors, cores or threads, depending on the site's EGO_DEFINE_NCPUS.
    """
    serving = {row["HOST_NAME"] for row in _rows(running) if row.get("MAX") != "0"}
    rows = list(_rows(hosts)) or [{"HOST_NAME": name} for name in sorted(serving)]
    rows = [row for row in rows if running is None or row["HOST_NAME"] in serving]
    rows = [row for row in rows if row.get("server") != "No"]
    compute = [row for row in rows if "CN" in row.get("RESOURCES", "").strip("()").split()]
    for row in compute or rows:
        yield ProbedNode(row["HOST_NAME"], Hardware(memory_mib=_mebibytes(row.get("maxmem", ""))), queues=queues)


def _rows(text: str | None) -> Iterator[dict[str, str]]:
    """Yield a table's rows as mappings from title to cell. Only cells in the last column may contain spaces."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    if not lines or not lines[0].startswith("HOST_NAME"):
        return
    titles = lines[0].split()
    for line in lines[1:]:
        words = line.split(maxsplit=len(titles) - 1)
        if len(words) >= 2:
            yield dict(zip(titles, words, strict=False))


def _mebibytes(text: str) -> int | None:
    """Convert a size printed by ``lshosts``, such as 606.9G."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([KMGT])", text)
    return round(float(found[1]) * _UNITS[found[2]]) or None if found else None


def _wall(minutes: float) -> str:
    seconds = int(minutes * 60)
    days, hours = divmod(seconds // 3600, 24)
    clock = f"{hours:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock

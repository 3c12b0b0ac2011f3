"""What the cluster refuses when a job is submitted, as LSF and the site's own check (esub) do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hidl_twin.batch.settings import Host, Settings
from hidl_twin.batch.store import Job, refuse
from hidl_twin.lsf.dependencies import parse
from hidl_twin.lsf.options import minutes

_WHAT = {"-P": "a project", "-G": "a user group (bank)", "-W": "a run limit", "-q": "a queue", "-U": "a reservation"}
_NOT_SUBMITTED = "Job not submitted."
# fmt: off
_HEEDED = (
    "-nnodes", "-n", "-W", "-P", "-G", "-q", "-J", "-Jd", "-o", "-oo", "-e", "-eo", "-env", "-cwd", "-w",
    "-alloc_flags", "-I", "-Is", "-Ip", "-K", "-x",
)
# fmt: on


def admit(job: Job, settings: Settings) -> Job:
    """The job with the queue and the run limit that it gets; ends the program for one that is refused."""
    options = dict(job.options)
    _require(options, settings)
    if options.setdefault("-q", settings.default_queue or "") == "":
        refuse(f"No default queue. {_NOT_SUBMITTED}")
    queue = settings.queues.get(options["-q"])
    if queue is None:
        refuse(f"{options['-q']}: No such queue. {_NOT_SUBMITTED}")
    nodes = _nodes(options, settings)
    if nodes < queue.min_nodes:
        refuse(f"Too few processors requested. {_NOT_SUBMITTED}")
    if queue.max_nodes is not None and nodes > queue.max_nodes:
        refuse(f"Too many processors requested. {_NOT_SUBMITTED}")
    if "-w" in options and parse(options["-w"]) is None:
        refuse(f"{options['-w']}: a dependency that this stand-in does not read. {_NOT_SUBMITTED}")
    most = queue.run_limit(nodes)
    asked = minutes(options["-W"]) if "-W" in options else most
    if most is not None and asked is not None and asked > most:
        refuse(f"RUNLIMIT: Cannot exceed queue's hard limit(s). {_NOT_SUBMITTED}")
    _require_hosts(nodes, options["-q"], settings)
    limit = {} if asked is None else {"-W": f"{int(asked) // 60}:{int(asked) % 60:02d}"}
    given = options | {"-nnodes": str(nodes)} | limit
    return replace(job, options=given, queue=options["-q"], nodes=nodes, run_limit=asked)


def ignored(options: Mapping[str, str]) -> list[str]:
    """Those of the options that this stand-in takes, and does nothing about."""
    return [option for option in options if option not in _HEEDED]


def _nodes(options: Mapping[str, str], settings: Settings) -> int:
    """How many whole nodes: those of -nnodes, or as many as the slots of -n need."""
    option = "-nnodes" if "-nnodes" in options else "-n"
    text = options.get(option, "1")
    if not text.isdecimal() or int(text) < 1:
        refuse(f"{text}: Bad argument for option {option}. {_NOT_SUBMITTED}")
    slots = max((host.slots for host in settings.hosts.values()), default=Host.slots)
    return int(text) if option == "-nnodes" else -(-int(text) // slots)


def _require(options: Mapping[str, str], settings: Settings) -> None:
    """The site's own check, which speaks for itself; LSF then says no more than that it was refused."""
    for option in settings.required:
        if not options.get(option):
            refuse(f"{_WHAT.get(option, option)} ({option}) is required.\nRequest aborted by esub. {_NOT_SUBMITTED}")


def _require_hosts(nodes: int, queue: str, settings: Settings) -> None:
    """A job that is within the site's limits, and beyond what the twin has, would wait for ever."""
    have = len(settings.queues[queue].hosts or settings.hosts)
    if settings.hosts and nodes > have:
        whole = f" of the {settings.site_nodes} of {settings.cluster}" if settings.site_nodes else ""
        refuse(
            f"{nodes} nodes are within the limits of {settings.cluster}, but queue {queue} of this twin has {have}"
            f"{whole}: hidl cluster up --nodes {nodes}. {_NOT_SUBMITTED}"
        )

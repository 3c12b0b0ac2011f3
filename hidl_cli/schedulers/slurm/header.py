"""The ``#SBATCH`` lines at the top of a job script."""

from __future__ import annotations

import math
import re
from pathlib import Path

from hidl_cli.launch.allocation import Allocation
from hidl_cli.site.schema import Policies

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

"""The ``#PBS`` lines at the top of a job script.

Options and resources are those of qsub(1B) and pbs_resources(7B) of PBS Professional 2022 and OpenPBS 23.
"""

from __future__ import annotations

import math
import re

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.allocation import Allocation
from hidl_cli.site.schema import Policies

#: What PBS collects of the job's output goes there; the job writes stdout.log and stderr.log itself (``job.sh``).
OUTPUT = "pbs.log"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,-]*")
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*=[A-Za-z0-9_.,+/-]+")


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the lines that request ``allocation`` in the forms that the site accepts; its own directives come last.

    Raises ``InvalidInput`` for what PBS has no option for, and for a value that is not a plain word.
    """
    uses = {
        "-N": ("required", allocation.job_name),
        "-q": (policies.partition, _queue(allocation, policies)),
        "-A": (policies.account, allocation.account),
    }
    words = [f"{option} {_word(option, value)}" for option, (use, value) in uses.items() if use != "never" and value]
    limit = _walltime(allocation.time_limit) if policies.time != "never" else None
    lines = [
        *words,
        f"-l select={_select(allocation, policies)}",
        "-l place=scatter:excl" if policies.exclusive else "-l place=scatter",
        *([f"-l walltime={limit}"] if limit else []),
        *(["-V"] if policies.export == "all" else []),
        f"-j oe -o {OUTPUT}",
        *policies.directives,
    ]
    return tuple(f"#PBS {line}" for line in lines)


def _queue(allocation: Allocation, policies: Policies) -> str | None:
    """Return the queue; PBS gives each reservation one of its own."""
    return (allocation.reservation if policies.reservation != "never" else None) or allocation.queue


def _select(allocation: Allocation, policies: Policies) -> str:
    """Return one chunk for each node: ``4:ncpus=64:mpiprocs=4:ngpus=4:system=polaris``."""
    if allocation.qos is not None and policies.qos != "never":
        raise InvalidInput(
            f"PBS has no quality of service; {allocation.qos!r} is requested",
            hint="leave --qos out; a queue or the site's policies.directives may have the same effect",
        )
    ranks = allocation.ranks_per_node
    cores = allocation.cores_per_node or ranks * (allocation.cores_per_rank or 0)
    memory, gpus = allocation.memory_gib, allocation.gpus_per_node
    resources = {
        "ncpus": cores * (allocation.threads_per_core or 1) if cores and policies.cpus != "none" else None,
        "mpiprocs": ranks if policies.tasks != "none" else None,
        "ngpus": gpus if policies.gpus != "none" else None,
        "mem": f"{int(memory * 1024)}mb" if memory and policies.memory in ("mem", "mem-per-cpu") else None,
    }
    chunk = [f"{name}={value}" for name, value in resources.items() if value is not None]
    if allocation.constraint is not None and policies.constraint != "never":
        if not all(_RESOURCE.fullmatch(one) for one in allocation.constraint.split(":")):
            raise InvalidInput(
                f"invalid constraint {allocation.constraint!r}: expected a resource of PBS, such as system=polaris",
                hint="several are separated by colons, as in `-l select`",
            )
        chunk.append(allocation.constraint)
    return ":".join([str(allocation.nodes), *chunk])


def _walltime(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    whole = max(60, math.ceil(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _word(option: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for PBS's {option}: must be one plain word",
            hint="letters, digits and _ . : / + @ = , - are allowed, with no sign at the beginning",
        )
    return value

"""The ``# flux:`` lines at the top of a job script: options of flux-batch(1) of flux-core 0.88.

Nodes are requested whole (``--nodes`` without ``--nslots``), and the launcher shares out their cores and GPUs.
"""

from __future__ import annotations

import math
import re

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.allocation import Allocation
from hidl_cli.site.schema import Policies

#: What Flux collects of the job's output goes there; the job writes stdout.log and stderr.log itself (``job.sh``).
OUTPUT = "flux.log"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,|&-]*")


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """Return the lines that request ``allocation`` in the forms that the site accepts; its own directives come last.

    Raises ``InvalidInput`` for what Flux has no option for, and for a value that is not a plain word.
    """
    _refuse(allocation, policies)
    limit = None if allocation.time_limit is None else f"{math.ceil(allocation.time_limit)}s"
    uses = {
        "job-name": ("required", allocation.job_name),
        "queue": (policies.partition, allocation.queue),
        "time-limit": (policies.time, limit),
        "bank": (policies.account, allocation.account),
        "requires": (policies.constraint, allocation.constraint),
    }
    lines = [
        *(f"--{name}={_word(name, value)}" for name, (use, value) in uses.items() if use != "never" and value),
        f"--nodes={allocation.nodes}",
        *(["--exclusive"] if policies.exclusive else []),
        f"--output={OUTPUT}",
        *policies.directives,
    ]
    return tuple(f"# flux: {line}" for line in lines)


def _refuse(allocation: Allocation, policies: Policies) -> None:
    asked = {
        "a quality of service": allocation.qos if policies.qos != "never" else None,
        "a reservation": allocation.reservation if policies.reservation != "never" else None,
    }
    for what, value in asked.items():
        if value is not None:
            raise InvalidInput(
                f"Flux has no option for {what}; {value!r} is requested",
                hint="leave it out; a queue or the site's policies.directives may have the same effect",
            )


def _word(name: str, value: str) -> str:
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for Flux's --{name}: must be one plain word",
            hint="letters, digits and _ . : / + @ = , | & - are allowed, with no sign at the beginning",
        )
    return value

"""What a job script asks LSF for: its ``#BSUB`` lines, written and read.

The options are those of ``bsub`` in IBM Spectrum LSF 10.1 (https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=bsub-options)
with the whole-node allocations (``-nnodes``) of its Cluster System Manager integration, as on Summit and Lassen.
"""

from __future__ import annotations

import math
import re
import shlex

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.allocation import Allocation
from hidl_cli.site.schema import Policies, Use

#: LSF's own report goes there; the job writes stdout.log and stderr.log itself (templates/schedulers/lsf.sh.j2).
REPORT = "lsf.log"

_MARK = "#BSUB"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+@=,#-]*")  # reservations are called user1#0


def header(allocation: Allocation, policies: Policies) -> tuple[str, ...]:
    """The ``#BSUB`` lines for the allocation, as the site's policies have them.

    Ranks, cores and GPUs are not asked for here: LSF gives whole nodes, and jsrun shares them out.
    Raises ``InvalidInput`` for what LSF has no option for, and for a value that is not a plain word.
    """
    _refuse_what_lsf_has_not(allocation, policies)
    options = [
        f"-nnodes {allocation.nodes}",
        *_option("-W", "a time limit", policies.time, _run_limit(allocation.time_limit)),
        *_option(policies.account_option, "an account", policies.account, allocation.account),
        *_option("-q", "a queue", policies.partition, allocation.queue),
        *_option("-U", "a reservation", policies.reservation, allocation.reservation),
        *_option("-J", "a job name", "required", allocation.job_name),
        f"-o {REPORT}",
        *(["-x"] if policies.exclusive else []),
        *_environment(policies),
        *policies.directives,
    ]
    return tuple(f"{_MARK} {option}" for option in options)


def options(script: str) -> list[str]:
    """The options that the ``#BSUB`` lines at the top of a job script hold, as words of a command line.

    LSF takes such a line for its own wherever it stands. So one below the first command, which can only be part of
    some value, raises ``InvalidInput``.
    """
    words: list[str] = []
    at_the_top = True
    for number, line in enumerate(re.split(r"\r?\n|\r", script), start=1):
        at_the_top = at_the_top and (line.startswith("#") or not line.strip())
        if not line.lstrip().startswith(_MARK):
            continue
        if not at_the_top:
            raise InvalidInput(
                f"line {number} of the job script begins with {_MARK}, and LSF would take it for an option",
                hint="it is part of an argument or a variable's value: change that",
            )
        words += shlex.split(line.lstrip()[len(_MARK) :])
    return words


def _option(letter: str, what: str, use: Use, value: str | None) -> list[str]:
    if use == "never" or value is None:  # the plan reports what the site requires and the user did not give
        return []
    if not _WORD.fullmatch(value):
        raise InvalidInput(
            f"invalid value {value!r} for {what} (LSF's {letter}): must be one plain word",
            hint="letters, digits and _ . : / + @ = , # - are allowed, with no sign at the beginning",
        )
    return [f"{letter} {value}"]


def _run_limit(seconds: float | None) -> str | None:
    """[hours:]minutes, for LSF knows no seconds: rounded up."""
    if seconds is None:
        return None
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d}"


def _environment(policies: Policies) -> list[str]:
    """``-env``: without it LSF hands over the whole environment."""
    return [] if policies.export == "never" else [f"-env {policies.export}"]


def _refuse_what_lsf_has_not(allocation: Allocation, policies: Policies) -> None:
    asked = {
        "a quality of service": allocation.qos if policies.qos != "never" else None,
        "a node feature (constraint)": allocation.constraint if policies.constraint != "never" else None,
        "memory per node": allocation.memory_gib if policies.memory in ("mem", "mem-per-cpu") else None,
    }
    for what, value in asked.items():
        if value is not None:
            raise InvalidInput(
                f"LSF has no option for {what}, but {value} is asked for",
                hint="leave it out; what LSF has instead (-R, -M, -app) can stand in the site's policies.directives",
            )
    if policies.gpus != "none":
        raise InvalidInput(
            f"the site's policies.gpus is {policies.gpus!r}, which is a form of Slurm's",
            hint="make it none: with LSF, jsrun asks for the GPUs",
        )

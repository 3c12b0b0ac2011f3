"""Dependencies of jobs on others: ``bsub -w "done(101) && started(102)"``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from hidl_twin.batch.store import FINAL, Job

NEVER = "Dependency condition invalid or never satisfied"
NOT_YET = "Job dependency condition not satisfied"

_CONDITION = re.compile(r"(done|ended|exit|started)\(\s*(\d+|\"[^\"]+\"|[\w.-]+)\s*\)|(\d+)")
_MET: Mapping[str, Callable[[Job], bool]] = {
    "done": lambda job: job.stat == "DONE",
    "ended": lambda job: job.stat in FINAL,
    "exit": lambda job: job.stat == "EXIT",
    "started": lambda job: job.started is not None,
}


def parse(text: str) -> list[tuple[str, str]] | None:
    """The conditions, each a word and a job's number or name; None for what this stand-in does not read.

    A number alone stands for ``done``. All of them must be met (``&&``); other operators are not read.
    """
    found = [_CONDITION.fullmatch(part.strip()) for part in text.split("&&")]
    return [(one[1] or "done", (one[2] or one[3]).strip('"')) for one in found if one] if all(found) else None


def obstacle(text: str, jobs: Sequence[Job]) -> str:
    """Why a job with this dependency cannot start; empty: it can."""
    reason = ""
    for word, which in parse(text) or []:
        named = [job for job in jobs if which in (job.id, job.options.get("-J"))]
        if not named or any(job.stat in FINAL and not _MET[word](job) for job in named):
            return NEVER
        if not all(_MET[word](job) for job in named):
            reason = NOT_YET
    return reason

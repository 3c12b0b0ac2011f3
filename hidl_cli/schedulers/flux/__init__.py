"""Flux: ``flux batch``, ``flux jobs`` and ``flux cancel``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.schedulers.backend import Backend, Receipt, refusal
from hidl_cli.schedulers.decision import Job
from hidl_cli.schedulers.flux import header, jobs
from hidl_cli.schedulers.programs import SUBMIT_SECONDS, NoAnswer, Programs, batches, complaint
from hidl_cli.site.schema import Policies

PROGRAMS = Programs(
    dropped=("FLUX_JOB_", "FLUX_TASK_", "FLUX_ENCLOSING_ID", "FLUX_KVS_NAMESPACE", "PMI_", "PMIX_"),
    unreachable=re.compile(
        r"unable to connect to flux|broker socket|connection refused|host is unreachable|timed? ?out", re.IGNORECASE
    ),
    added={"FLUX_F58_FORCE_ASCII": "1"},  # job ids begin with f, in every locale
)
_ID = re.compile(r"^[fƒ][1-9A-HJ-NP-Za-km-z]+$", re.MULTILINE)
#: What to look at, by the words of a refusal.
_HINTS = (
    (r"exceeds policy limit", "fewer nodes (--nodes), less time (--time) or another queue (--partition)"),
    (r"queue", "flux queue list shows the queues; --partition NAME"),
    (r"bank|account", "--account NAME"),
    (r"constraint", "--constraint, in the syntax of `flux batch --requires`"),
)


class Flux(Backend):
    """Jobs are recognized by the directory that they were submitted from."""

    traits = SYSTEMS["flux"]
    programs = PROGRAMS
    grace_seconds = 15.0
    first_interval = 0.5
    asks_by_id = True

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header.header(allocation, policies)

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``."""
        completed = PROGRAMS.call("flux", "batch", run.script.name, timeout=SUBMIT_SECONDS, cwd=run.directory)
        if completed.status != 0:
            raise refusal(completed, _HINTS)
        printed = _ID.search(completed.stdout)
        return Receipt(printed.group().replace("ƒ", "f")) if printed else None

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        completed = PROGRAMS.call("flux", "jobs", "-a", "--count=0", "--json")  # the default count is 1,000
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        return _compact(completed.stdout)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        known = [id for id in ids if id is not None]
        # Flux exits with 1 if one of several jobs is unknown, and describes the others nevertheless.
        answers = (PROGRAMS.call("flux", "jobs", "--json", *some).stdout for some in batches(known))
        return jobs.parse(line for answer in answers if answer.strip() for line in _compact(answer))

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        completed = PROGRAMS.call("flux", "jobs", "--json", id)
        if completed.stdout.strip():
            return next((job for job in jobs.parse(_compact(completed.stdout)) if job.id == id), None)
        if re.search(r"\bunknown\b", completed.stderr):
            return None
        raise NoAnswer(complaint(completed))

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return jobs.parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        completed = PROGRAMS.call("flux", "cancel", id)
        if completed.status != 0 and not re.search(r"job is inactive|unknown job id", completed.stderr):
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")


def _compact(answer: str) -> list[str]:
    try:
        return jobs.compact(answer)
    except ValueError as error:
        raise NoAnswer(f"flux jobs printed no valid JSON: {error}") from error


BACKEND = Flux

"""PBS Professional and OpenPBS: ``qsub``, ``qselect``, ``qstat`` and ``qdel``."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Collection, Iterable, Sequence

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.schedulers.backend import Backend, Receipt, refusal
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.schedulers.pbs import header, jobs
from hidl_cli.schedulers.programs import SUBMIT_SECONDS, NoAnswer, Programs, batches, complaint, whole_lines
from hidl_cli.site.schema import Policies

PROGRAMS = Programs(
    dropped=("PBS_", "PMI_", "PMIX_", "PALS_"),
    kept=frozenset(("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME", "PBS_SERVER")),
    unreachable=re.compile(
        r"cannot connect to (any )?server|connection refused|communication failure|timed? ?out|pbs_iff"
        r"|no default server|end of message|server (is )?shutting down|could not connect|authentication",
        re.IGNORECASE,
    ),
)
_FINISHED, _UNKNOWN = 35, 153  # exit statuses of qstat and qdel
_ID = re.compile(r"^\d+(\[\d*\])?\.\S+$", re.MULTILINE)
#: What to look at, by the words of a refusal.
_HINTS = (
    (r"queue", "qstat -Q lists the queues; --partition NAME"),
    (r"resource limits", "qstat -Qf QUEUE shows its limits: fewer nodes (--nodes), less time (--time), another queue"),
    (r"account|project|allocation|uid", "--account NAME"),
    (r"resource", "policies of the site's file say what is requested of a node, and `directives` what else"),
)


class Pbs(Backend):
    """Jobs are recognized by the directory that they were submitted from."""

    traits = SYSTEMS["pbs"]
    programs = PROGRAMS
    asks_by_id = True
    end_seconds = 60.0  # SIGTERM and SIGKILL are kill_delay (10 by default) apart

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header.header(allocation, policies)

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``."""
        completed = PROGRAMS.call("qsub", run.script.name, timeout=SUBMIT_SECONDS, cwd=run.directory)
        if completed.status != 0:
            raise refusal(completed, _HINTS)
        printed = _ID.search(completed.stdout)  # a site's hook may print more
        return Receipt(printed.group()) if printed else None

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``: ``qselect`` first, for ``qstat -f`` would describe the jobs of all users."""
        user = pwd.getpwuid(os.getuid()).pw_name
        selected = PROGRAMS.call("qselect", "-x", "-u", user)
        if selected.status != 0:
            raise NoAnswer(complaint(selected))
        ids = whole_lines(selected)
        if not ids:
            return []
        return _described(ids)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        return jobs.parse(_described([id for id in ids if id is not None]))

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        completed = PROGRAMS.call("qstat", "-x", "-f", id)
        if completed.status == _UNKNOWN:
            return None
        found = [job for job in jobs.parse(jobs.compact(completed.stdout)) if job.id == id]
        if not found or not completed.stdout.endswith("\n\n"):
            raise NoAnswer(complaint(completed))
        return found[0]

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return jobs.parse(lines)

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        completed = PROGRAMS.call("qdel", id)
        if completed.status not in (0, _FINISHED, _UNKNOWN):
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")

    def never_starts(self, job: Job) -> Never | None:
        """See ``Backend``."""
        return jobs.never_starts(job)


def _described(ids: Sequence[str]) -> list[str]:
    lines = []
    for some in batches(ids):
        completed = PROGRAMS.call("qstat", "-x", "-f", *some)
        if completed.status not in (0, _UNKNOWN, _FINISHED):  # one of them may be gone meanwhile
            raise NoAnswer(complaint(completed))
        if completed.status == 0 and not completed.stdout.endswith("\n\n"):  # a blank line ends each job
            raise NoAnswer("qstat printed an incomplete answer")
        lines += jobs.compact(completed.stdout)
    return lines


BACKEND = Pbs

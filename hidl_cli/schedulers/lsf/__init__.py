"""IBM Spectrum LSF: ``bsub``, ``bjobs``, ``bkill`` and ``bhist``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.schedulers.backend import Backend, Receipt, Refused, options, refusal
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.schedulers.lsf import commands, header, jobs
from hidl_cli.schedulers.programs import SUBMIT_SECONDS, NoAnswer
from hidl_cli.schedulers.ticket import Ticket
from hidl_cli.site.schema import Policies

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")
_LIMIT = "threshold"  # bsub would try until others of the user's jobs have started


class Lsf(Backend):
    """Jobs are recognized by their description, which is the run's id."""

    traits = SYSTEMS["lsf"]
    programs = commands.PROGRAMS
    end_seconds = 45.0  # SIGINT, SIGTERM and SIGKILL come ten seconds apart

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header.header(allocation, policies)

    def hint(self) -> str:
        """See ``Backend``."""
        return "try again later; `lsid` says whether LSF can be reached from here"

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``.

        LSF reads ``#BSUB`` lines either from standard input only or, as on Summit, from a named script only. So they
        are given as options too, which every LSF takes.
        """
        given = header.options(run.script.read_text(encoding="utf-8"))
        directory = str(run.directory.resolve())
        where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand a %
        command = ["bsub", *given, *where, "-Jd", run.id, "./job.sh"]
        try:
            completed = commands.call(*command, timeout=SUBMIT_SECONDS, cwd=run.directory)
        except NoAnswer as silence:
            if _LIMIT in str(silence).lower():
                raise Refused(str(silence), hint="wait until others of your jobs have started") from silence
            raise
        printed = _SUBMITTED.search(f"{completed.stdout}\n{completed.stderr}")  # a site's esub may print more
        if printed is None:
            raise refusal(completed, ((r"", "see `bqueues -l` for the limits of the queues"),))
        return Receipt(printed[1])

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Backend``: an interactive job, with a pseudo-terminal if there is a terminal."""
        words = options(header, "#BSUB", without=("-o", "-e"))
        return ("bsub", "-Is" if terminal else "-I", *words, "-Jd", mark, "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        return commands.query(jobs.FIELDS)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return jobs.parse(lines)

    def is_of(self, job: Job, run: Run, ticket: Ticket) -> bool:
        """See ``Backend``: the description is the run's id; what another program submitted has its own, or none."""
        return ticket.directory is not None or job.mark == run.id

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        commands.kill(id)

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``: LSF's log files, a job at a time."""
        return [job for id in ids if id for job in jobs.parse_history(commands.history(id)) if job.id == id]

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        return next((job for job in jobs.parse(commands.describe(id, jobs.FIELDS)) if job.id == id), None)

    def never_starts(self, job: Job) -> Never | None:
        """See ``Backend``."""
        return jobs.never_starts(job)


BACKEND = Lsf

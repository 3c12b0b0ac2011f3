"""Slurm: ``sbatch``, ``squeue``, ``sacct`` and ``scancel``."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import HidlError
from hidl_cli.launch.allocation import Allocation
from hidl_cli.process import Completed
from hidl_cli.record.run import Run
from hidl_cli.schedulers.backend import Backend, Receipt, Refused, options
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.schedulers.programs import SUBMIT_SECONDS, NoAnswer, batches, complaint, whole_lines
from hidl_cli.schedulers.slurm import commands, header, jobs, reasons, refusals
from hidl_cli.site import hidl_cluster
from hidl_cli.site.schema import Policies

#: Defaults that users keep in their environment, by the option that they stand for. sbatch lets them win over the
#: script, so they hold only where the script says nothing; other SBATCH_ variables never do.
_DEFAULTS = {
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "partition": "SBATCH_PARTITION",
    "clusters": "SBATCH_CLUSTERS",
    "wckey": "SBATCH_WCKEY",
}
_PARTITION_SECONDS = 60
_UNKNOWN = "Invalid job id"
#: Options of sbatch that salloc does not have.
_OF_SCRIPTS = ("--output", "--error", "--open-mode", "--export", "--requeue", "--no-requeue", "--input", "-o", "-e")
#: A step on the first node that takes nothing away from those that are started within it.
_FIRST_NODE = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none")


class Slurm(Backend):
    """Jobs are recognized by the directory that they were submitted from."""

    traits = SYSTEMS["slurm"]
    programs = commands.PROGRAMS
    grace_seconds = 15.0
    first_interval = 0.5
    end_seconds = 90.0  # KillWait (30 by default) between SIGTERM and SIGKILL; an epilog may follow

    def __init__(self) -> None:
        self._answered = False

    def hint(self) -> str:
        """See ``Backend``: the line that brings hidl's own cluster up again, if it is that one."""
        return hidl_cluster.line_that_helps() or super().hint()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Backend``."""
        return header.header(allocation, policies)

    def this_cluster(self) -> str | None:
        """See ``Backend``."""
        return commands.this_cluster()

    def reaches(self, cluster: str) -> bool:
        """See ``Backend``: ``--clusters`` names any cluster of the same accounting."""
        return True

    def ping(self) -> None:
        """See ``Backend``; the name may be of another cluster than the last time, by PATH or configuration."""
        commands.ping()
        commands.learn_cluster()

    def submit(self, run: Run) -> Receipt | None:
        """See ``Backend``."""
        asked = header.options_of(run.script)
        completed = commands.call(
            "sbatch",
            "--parsable",
            run.script,
            timeout=SUBMIT_SECONDS,
            cwd=run.directory,
            keep=_defaults(asked),
        )
        if completed.status != 0:
            self._refuse(completed, asked)
        # A site's filter may print more, before or after.
        printed = re.search(r"^(\d+)(?:;(\S+))?\s*$", completed.stdout, re.MULTILINE)
        return Receipt(printed[1], printed[2]) if printed else None

    def check(self, run: Run) -> None:
        """See ``Backend``: ``sbatch --test-only`` refuses what sbatch refuses."""
        asked = header.options_of(run.script)
        completed = commands.call("sbatch", "--test-only", run.script, cwd=run.directory, keep=_defaults(asked))
        if completed.status != 0:
            self._refuse(completed, asked)

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...]:
        """See ``Backend``: ``salloc``, whose end is the allocation's end, and a step in it."""
        words = options(header, "#SBATCH", without=_OF_SCRIPTS)
        variables = hidl_cluster.environment()
        given = {word.partition("=")[0] for word in words}
        users = [
            f"--{option}={variables[variable]}"
            for option, variable in _DEFAULTS.items()
            if variable in variables and f"--{option}" not in given
        ]
        step = (*_FIRST_NODE, "--preserve-env", *(("--pty",) if terminal else ()))
        return ("salloc", *words, *users, *step, "bash", "./job.sh")

    def query(self, cluster: str | None) -> Sequence[str]:
        """See ``Backend``."""
        if not self._answered and cluster is None:  # scontrol knows nothing of another's controller
            commands.ping()  # returns at once if nothing listens, for which squeue needs ten seconds
        self._answered = False
        completed = commands.call(*jobs.squeue(cluster))
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        self._answered = True
        return whole_lines(completed)

    def parse(self, lines: Iterable[str]) -> list[Job]:
        """See ``Backend``."""
        return list(jobs.parse(lines))

    def kill(self, id: str, cluster: str | None) -> None:
        """See ``Backend``."""
        completed = commands.call("scancel", *jobs.on(cluster), id)
        if completed.status != 0 and _UNKNOWN not in completed.stderr:
            raise HidlError(f"job {id} could not be cancelled: {complaint(completed)}")

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """See ``Backend``: the accounting, where there is one."""
        known = [id for id in ids if id is not None]
        found = [job for some in batches(known) for job in self._accounted(jobs.sacct(cluster, ids=some))]
        return found + (self._accounted(jobs.sacct(cluster, since=since)) if len(known) < len(ids) else [])

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        asked = [jobs.squeue(cluster, id=id), ["scontrol", *jobs.on(cluster), "show", "job", id]]
        for command in asked:  # scontrol, if squeue neither lists the job nor calls its id invalid
            completed = commands.call(*command)
            if completed.status != 0 and _UNKNOWN in completed.stderr:
                return None
            if completed.status != 0:
                raise NoAnswer(complaint(completed))
            if command is asked[0] and (found := list(jobs.parse(whole_lines(completed)))):
                return found[0]
        raise NoAnswer(f"squeue prints nothing about job {id}")

    def never_starts(self, job: Job) -> Never | None:
        """See ``Backend``."""
        assert isinstance(job, jobs.SlurmJob)
        return reasons.never_starts(job, lambda name: _partition(name, int(time.time() / _PARTITION_SECONDS)))

    @staticmethod
    def _refuse(completed: Completed, asked: Mapping[str, str]) -> NoReturn:
        words = complaint(completed)
        fact, hint = refusals.explain(words, asked)
        raise Refused(words, hint=hint, fact=fact)

    @staticmethod
    def _accounted(command: list[str]) -> list[Job]:
        completed = commands.call(*command, timeout=commands.ACCOUNTING_SECONDS)
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        return list(jobs.parse(whole_lines(completed)))


def _defaults(asked: Mapping[str, str]) -> list[str]:
    """Return the user's defaults that hold: those of options that the script does not give."""
    return [variable for option, variable in _DEFAULTS.items() if option not in asked]


@lru_cache(maxsize=64)
def _partition(name: str, minute: int) -> Mapping[str, str]:
    """Ask once a minute."""
    return commands.partition(name)


BACKEND = Slurm

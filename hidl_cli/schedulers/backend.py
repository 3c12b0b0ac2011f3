"""What one batch system adds to the common core (``batch.py``): its commands, how to read their answers, its header."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from os.path import realpath
from pathlib import Path

from hidl_cli.batch_systems import BatchSystem
from hidl_cli.launch.allocation import Allocation
from hidl_cli.process import Completed
from hidl_cli.record.run import Run
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.schedulers.programs import NoAnswer, Programs, complaint
from hidl_cli.schedulers.ticket import Ticket
from hidl_cli.site.schema import Policies


@dataclass(frozen=True)
class Receipt:
    """The id of a job that was taken; ``cluster``: where, if the batch system named another."""

    id: str
    cluster: str | None = None


class Refused(Exception):
    """The job was refused: the batch system's words; ``fact``: the site's value that they are about."""

    def __init__(self, words: str, *, hint: str, fact: str | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.hint = hint
        self.fact = fact


class Backend(ABC):
    """One batch system. A method that runs a program raises ``NoAnswer`` if the system does not answer.

    ``cluster`` is the name of the cluster that is meant; None: the one that the programs speak to by themselves.
    """

    #: Its row in ``hidl_cli/batch_systems.py``.
    traits: BatchSystem
    programs: Programs
    #: See ``decision.Clock.grace``.
    grace_seconds = 60.0
    #: Shortest time between two queries, in seconds.
    first_interval = 1.0
    #: ``history`` asks the server about each job by its id, so that a job that still waits or runs there does so.
    asks_by_id = False
    #: How long the system may take to end a job, in seconds.
    end_seconds = 90.0

    @property
    def name(self) -> str:
        """As site files name it."""
        return self.traits.name

    @cached_property
    def functions(self) -> str:
        """See ``Scheduler.functions``: ``job.sh`` beside the backend's module."""
        return resources.files(type(self).__module__).joinpath("job.sh").read_text(encoding="utf-8")

    @abstractmethod
    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``."""

    def this_cluster(self) -> str | None:
        """Return the name of the cluster that the programs speak to; None if unknown. May be from an earlier query."""
        return self._cluster

    def ping(self) -> None:
        """Return if the system answers; ``this_cluster`` is up to date then."""
        self._cluster = self._ask_for_cluster()

    @abstractmethod
    def submit(self, run: Run) -> Receipt | None:
        """Submit the run's script from its directory; None: taken perhaps, but no id was printed.

        Raises ``Refused``, ``NoAnswer`` (perhaps taken) or ``NotTaken``.
        """

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        """See ``Scheduler.interactive``."""
        return None

    def check(self, run: Run) -> None:
        """Raise ``Refused`` if the system would refuse the run's script, where it can be asked; submits nothing."""
        return

    @abstractmethod
    def query(self, cluster: str | None) -> Sequence[str]:
        """Return the answer's lines about all of the user's jobs, also those that ended lately."""

    @abstractmethod
    def parse(self, lines: Iterable[str]) -> list[Job]:
        """Read what ``query`` returned."""

    def is_of(self, job: Job, run: Run, ticket: Ticket) -> bool:
        """Whether the job is the run's, by its mark: the directory that it was submitted from.

        The directory's name is the run's id. It may be mounted elsewhere where the scheduler is; a copy of it is
        another's.
        """
        directory = ticket.directory or run.directory
        if job.mark == realpath(directory):
            return True
        if ticket.directory is not None or Path(job.mark).name != run.id:
            return False
        try:
            return Path(job.mark).samefile(directory)
        except OSError:
            return True

    def find(self, jobs: Iterable[Job], run: Run, ticket: Ticket) -> Job | None:
        """Return the run's job, of several (id unknown) the last; None if it is not among ``jobs``.

        An id alone is not trusted: a server that was reinstalled, or forgot its last jobs, gives it to another.
        """
        if ticket.id is not None:
            same = (job for job in jobs if job.id == ticket.id)
            return next((job for job in same if not job.mark or self.is_of(job, run, ticket)), None)
        own = (job for job in jobs if job.mark and self.is_of(job, run, ticket))
        return max(own, key=lambda job: _number(job.id), default=None)

    @abstractmethod
    def kill(self, id: str, cluster: str | None) -> None:
        """End a job; no error if it has ended. Raises ``HidlError`` if the system refuses."""

    def hint(self) -> str:
        """Return what to do if it does not answer."""
        return "nothing was submitted; try again later"

    def reaches(self, cluster: str) -> bool:
        """Whether jobs on that cluster can be asked about from here."""
        return cluster == self.this_cluster()

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """Return what records say of jobs that ``query`` does not list any more.

        ``ids``: the jobs' ids (None: unknown); ``since``: seconds since the epoch, before the first of them was
        submitted.
        """
        return []

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        """Ask about one job that ``query`` does not list; return None if the system says that it does not know the id.

        A listing may lack a job because it was cut between two lines. A backend that cannot ask by id returns None.
        """
        return None

    def never_starts(self, job: Job) -> Never | None:
        """Return why a pending job would never start as things stand; None if it may."""
        return None

    @cached_property
    def _cluster(self) -> str | None:
        with suppress(NoAnswer):
            return self._ask_for_cluster()
        return None

    def _ask_for_cluster(self) -> str | None:
        completed = self.programs.call(*self.traits.cluster_command)
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        named = re.search(self.traits.cluster_name, completed.stdout, re.MULTILINE)
        return named[1] if named else None


def options(header: Sequence[str], begin: str, *, without: Collection[str] = ()) -> list[str]:
    """Return the options in the lines of a header, as words of a command line, without some (``--output``, ``-o``).

    ``begin``: what each line begins with, such as ``#SBATCH``. An option's value is in its word, or is the next one.
    """
    words: list[str] = []
    for line in header:
        found = shlex.split(line.removeprefix(begin))
        if found and found[0].partition("=")[0] not in without:
            words += found
    return words


def refusal(completed: Completed, hints: Iterable[tuple[str, str]]) -> Refused:
    """Return what the program said against the job, with the first of the hints whose pattern fits its words."""
    words = complaint(completed)
    fitting = [hint for pattern, hint in hints if re.search(pattern, words, re.IGNORECASE)]
    general = f"the words are those of {completed.command[0]}; the script is job.sh in the run's directory"
    return Refused(words, hint=fitting[0] if fitting else general)


def _number(id: str) -> tuple[int, str]:
    """``id`` in the order of submission: by its first digits, else by the characters."""
    digits = re.match(r"\d+", id)
    return (int(digits.group()) if digits else 0, id)

"""What one batch system adds to the common core (``batch.py``): its commands, how to read their answers, its header."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import realpath
from pathlib import Path
from typing import Any, Protocol

from hidl_cli import process
from hidl_cli.batch_systems import BatchSystem
from hidl_cli.errors import HidlError, ProcessFailed
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Completed, Deferred
from hidl_cli.record.run import Run, State, Status
from hidl_cli.schedulers.decision import Job, Never
from hidl_cli.site.schema import Policies


class Scheduler(Protocol):
    """Takes a run's job script, says how it fares, and ends it."""

    @property
    def name(self) -> str:
        """As site files name it."""

    @property
    def submits_with(self) -> str | None:
        """The program that takes jobs; None: none is needed."""

    @property
    def directory_variable(self) -> str | None:
        """The variable in which a job finds the directory that it was submitted from; None: it starts there."""

    @property
    def functions(self) -> str:
        """Shell code for job scripts: ``list_hosts`` prints the allocation's hosts, one a line, ``job_id`` its id.

        It may define ``is_ending``, which succeeds if the scheduler is ending the job, and export variables that
        its launcher reads.
        """

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """Comment lines at the top of a job script that request the allocation, such as ``#SBATCH --nodes=4``."""

    def submit(self, run: Run) -> None:
        """Submit the run's script, in which the time limit stands.

        Raises ``SubmitRefused`` if it is refused, ``SchedulerUnreachable`` if the scheduler does not answer.
        """

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        """Return the command that runs ``./job.sh`` with its own streams in an allocation as ``header`` requests.

        ``mark``: by what the job is recognized, if not by its directory; ``terminal``: the streams are a terminal.
        None: unsupported.
        """

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """Run that command to its end, or that of hidl (``deferred``); returns its exit status, negative for a signal.

        Raises what ``submit`` raises, and ``MissingPrecondition`` if unsupported.
        """

    def release(self, run: Run) -> None:
        """End what is left of a run that was attended: its job, its processes.

        Raises ``SchedulerUnreachable`` if the scheduler does not answer.
        """

    def adopt(self, run: Run, job: str, directory: str) -> None:
        """Record that ``job``, which another program submitted from ``directory``, is the run's job."""

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """Return the status of each run, in the same order, at the cost of one query for all of them.

        While the scheduler does not answer, a run keeps its last known status, with the error as its ``reason``. A job
        that vanished without a trace is LOST.
        """

    def cancel(self, run: Run, *, state: State) -> bool:
        """End the run and all its processes; it ends in ``state`` (CANCELLED, INTERRUPTED or TIMEOUT).

        Returns whether anything was left to end.
        """

    def pause(self, seconds: float) -> float:
        """Seconds to wait before the next poll of a run that was submitted ``seconds`` ago."""


# ``job.json``: which job of which cluster a run is.


@dataclass(frozen=True)
class Ticket:
    """``id`` is None while unknown: hidl was killed, or had no answer, when it submitted the run.

    ``cluster`` is the cluster's name, None if unknown; ``submitted`` is in seconds since the epoch. ``directory`` is
    where the job was submitted from, if not from the run's directory (ReFrame has one of its own). ``foreign``: the
    directory is a copy of the run's, and the job is not known. ``cancelled``: hidl has had the scheduler end the job.
    """

    id: str | None
    cluster: str | None
    submitted: float
    directory: str | None = None
    foreign: bool = False
    cancelled: bool = False


def write_ticket(run: Run, scheduler: str, ticket: Ticket) -> Ticket:
    """Write and return it; on a full disk the run stays as it is, and its job is found by its mark."""
    document: dict[str, object] = {"id": ticket.id, "cluster": ticket.cluster, "submitted": ticket.submitted}
    if ticket.directory is not None:
        document["directory"] = ticket.directory
    if ticket.cancelled:
        document["cancelled"] = True
    with suppress(OSError):
        run.write("job", {"schema": "hidl.job/1", "scheduler": scheduler, **document, "of": identify(run.directory)})
    return ticket


def read_ticket(run: Run) -> Ticket:
    """Return the ticket of a run; of one without a readable one, or of another's copy, what its directory says."""
    document = read_job(run)
    if document is None or is_copied(document, run):
        return Ticket(None, None, time_of(run.directory), foreign=document is not None)
    submitted = document.get("submitted")
    since = float(submitted) if isinstance(submitted, int | float) else 0.0
    id, cluster, directory = (_text(document.get(name)) for name in ("id", "cluster", "directory"))
    return Ticket(id, cluster, since, directory, cancelled=document.get("cancelled") is True)


def read_job(run: Run) -> dict[str, Any] | None:
    """Return ``job.json``; None if it is missing or cannot be read."""
    with suppress(HidlError):
        return run.document("job")
    return None


def is_newer(run: Run) -> bool:
    """Whether ``status.json`` was written after ``job.json``: by a job that was submitted again by hand."""
    try:
        return (run.directory / "status.json").stat().st_mtime_ns > (run.directory / "job.json").stat().st_mtime_ns
    except OSError:
        return False


def time_of(directory: Path) -> float:
    """Return when a directory was made or changed last, in seconds since the epoch; also of one that was copied."""
    return directory.stat().st_ctime


def identify(directory: Path) -> dict[str, object]:
    """Return what a directory keeps under other mounts, and its path: a copy has neither."""
    return {"inode": directory.stat().st_ino, "path": os.path.realpath(directory)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def is_copied(document: Mapping[str, object], run: Run) -> bool:
    """Whether ``job.json`` was written for another directory, of which this one is a copy."""
    of = document.get("of")
    return isinstance(of, dict) and not (identify(run.directory).items() & of.items())


# A batch system's own programs: run with a time limit, and without variables that change their answers.


QUERY_SECONDS = 30.0
SUBMIT_SECONDS = 120.0


class NoAnswer(Exception):
    """The batch system did not answer; the message says why."""


class NoProgram(NoAnswer):
    """The batch system's programs are not on PATH."""


class NotTaken(NoAnswer):
    """The batch system did not answer, and certainly took no job."""


def without_shell_options(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without exported options of bash.

    With ``noexec`` or ``onecmd`` among them, a job script does nothing and ends with 0. The script cannot undo that.
    """
    return {name: value for name, value in variables.items() if name not in ("SHELLOPTS", "BASHOPTS")}


@dataclass(frozen=True)
class Programs:
    """The programs of one batch system.

    ``dropped``: prefixes of variables of an enclosing job, and of options in disguise, which the programs do not get;
    ``kept``: exceptions; ``added``: variables that they get. ``unreachable`` matches complaints that the server did
    not answer; ``waiting``: lines that a program prints until it has its answer, which is what counts then.
    """

    dropped: tuple[str, ...]
    unreachable: re.Pattern[str]
    waiting: re.Pattern[str] = re.compile(r"(?!)")
    kept: frozenset[str] = frozenset()
    added: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[], Mapping[str, str]] = lambda: os.environ

    def environment(self, keep: Collection[str] = ()) -> dict[str, str]:
        """Return the environment that the programs get; ``keep`` names further exceptions."""
        return {
            name: value
            for name, value in without_shell_options(self.variables()).items()
            if name in self.kept or name in keep or not name.startswith(self.dropped)
        } | dict(self.added)

    def call(
        self,
        *command: str | Path,
        timeout: float = QUERY_SECONDS,
        cwd: Path | None = None,
        keep: Collection[str] = (),
    ) -> Completed:
        """Run a program and return what it printed, whatever its exit status.

        Raises ``NoAnswer`` after ``timeout`` seconds, or if the program says that the server did not answer;
        ``NoProgram`` if it is not found.
        """
        try:
            completed = process.run(command, timeout=timeout, check=False, cwd=cwd, env=self.environment(keep))
        except ProcessFailed as error:
            if error.status == -signal.SIGKILL:
                raise NoAnswer(f"{command[0]} had no answer within {timeout:g} s") from error
            raise NoProgram(f"{command[0]} cannot be started: {error.output}") from error
        return completed if completed.status == 0 else self.answer_of(completed)

    def answer_of(self, failed: Completed) -> Completed:
        """Return what a program that failed printed, without the lines from before its answer."""
        printed = [text.splitlines() for text in (failed.stdout, failed.stderr)]
        stdout, stderr = (
            "\n".join(line for line in lines if line.strip() and not self.waiting.search(line)) for lines in printed
        )
        is_silent = not (stdout or stderr) and any(printed)
        if is_silent or self.unreachable.search(f"{stderr}\n{stdout}"):
            raise NoAnswer(complaint(failed))
        return replace(failed, stdout=stdout, stderr=stderr)


def batches(ids: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    """Split job ids into command lines of ``size`` ids: a kernel accepts 2 MiB of words with the environment."""
    return (ids[first : first + size] for first in range(0, len(ids), size))


def whole_lines(completed: Completed) -> list[str]:
    """Return the lines of a listing. Raises ``NoAnswer`` if its last line was cut, since jobs may be missing then."""
    if completed.status == 0 and completed.stdout and not completed.stdout.endswith("\n"):
        raise NoAnswer(f"{Path(completed.command[0]).name} printed an incomplete answer")
    return completed.stdout.splitlines()


def complaint(completed: Completed) -> str:
    """Return a program's error message on one line, without its own name before each line; else its output."""
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()
    own = re.escape(Path(completed.command[0]).name)
    short = [re.sub(rf"^({own}(-\w+)?: )?((error|fatal): )?", "", line, flags=re.IGNORECASE).strip() for line in lines]
    return "; ".join(line for line in short[-5:] if line) or f"status {completed.status}"


# The guard of an attended job: a process that takes the job back if this one is killed and its client hangs.


_GRACE_SECONDS = 5
#: Reads the client's number, then a word when hidl is done with it; the end of the file instead means that hidl died.
_SCRIPT = """
read -r client && [ "$client" != done ] || exit 0
read -r _ && exit 0
sleep "$1"
if [ "$(cat "/proc/$client/comm" 2>/dev/null)" = "$2" ]; then kill -KILL "$client"; fi
shift 2
cd /  # modules of the directory that hidl was called in may be another user's
exec "$@" >/dev/null 2>&1
"""


@contextmanager
def guarded(run: Run, program: str) -> Iterator[Callable[[int], object]]:
    """Start the guard of a run; give what tells it the process number of the client, whose name is ``program``."""
    cancel = (sys.executable, "-m", "hidl_cli", "cancel", str(run.directory))
    command = ("sh", "-c", _SCRIPT, "sh", str(_GRACE_SECONDS), program, *cancel)
    with Path(os.devnull).open("wb") as nowhere:
        guard = process.start_conversation(command, env=os.environ, stderr=nowhere)
    assert guard.stdin is not None
    assert guard.stdout is not None
    pipe = guard.stdin

    def tell(text: str) -> None:
        with suppress(BrokenPipeError):
            pipe.write(f"{text}\n".encode())

    try:
        yield lambda client: tell(str(client))
    finally:
        tell("done")
        pipe.close()
        guard.stdout.close()
        guard.wait()


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
        """See ``Scheduler.functions``: ``NAME.sh`` beside the module NAME of the backend, ``job.sh`` in a package."""
        module = Path(inspect.getfile(type(self)))
        script = module.with_name("job.sh") if module.stem == "__init__" else module.with_suffix(".sh")
        return script.read_text(encoding="utf-8")

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

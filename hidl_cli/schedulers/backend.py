"""Scheduler and batch system backend interfaces, and code shared by all backends."""

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

from hidl_cli import batch_systems, process
from hidl_cli.batch_systems import BatchSystem
from hidl_cli.errors import HidlError, ProcessFailed
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Completed, Deferred
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.decision import Job, StartBlocker
from hidl_cli.site.schema import Policies


class Scheduler(Protocol):
    """Submits job scripts, reports the status of their runs and cancels them."""

    @property
    def name(self) -> str:
        """Name of the scheduler in site files."""

    @property
    def submits_with(self) -> str | None:
        """Program that submits jobs, or None if no program is needed."""

    @property
    def directory_variable(self) -> str | None:
        """Variable that holds the directory a job was submitted from, or None if jobs start in that directory."""

    @property
    def functions(self) -> str:
        """Shell functions for job scripts.

        ``list_hosts`` prints the allocated hosts, one per line, and ``job_id`` prints the job id. An optional
        ``is_ending`` succeeds while the scheduler is ending the job. The code may export variables for the launcher.
        """

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """Return the lines that request the allocation in a job script, such as ``#SBATCH --nodes=4``."""

    def submit(self, run: Run) -> None:
        """Submit the run's script, which includes the time limit.

        Raises ``SubmitRefused`` if the scheduler rejects the job, and ``SchedulerUnreachable`` if it does not respond.
        """

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        """Return the command that runs ``./job.sh`` interactively in a new allocation, or None if that is unsupported.

        Args:
            header: Lines that request the allocation.
            mark: Text that identifies the job if its directory cannot.
            terminal: True if the standard streams are a terminal.
        """

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """Run the command returned by ``interactive`` and return its exit status, which is negative after a signal.

        An interrupt (in ``deferred``) ends the command. Propagates errors raised by ``submit``, and raises
        ``MissingPrecondition`` if interactive jobs are unsupported.
        """

    def release(self, run: Run) -> None:
        """End the job of a run that ``attend`` started, and all of the run's remaining processes.

        Raises ``SchedulerUnreachable`` if the scheduler does not respond.
        """

    def adopt(self, run: Run, job: str, directory: str) -> None:
        """Record that ``job``, submitted by another program from ``directory``, is the run's job."""

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """Return the status of each run, in order, with a single query for all of them.

        While the scheduler does not respond, runs keep their last known status, with the error as the ``reason``. A job
        that vanished without a trace is LOST.
        """

    def cancel(self, run: Run, *, state: State) -> bool:
        """Cancel the run and all its processes. Return False if it had already ended.

        ``state`` is the final state of the run: CANCELLED, INTERRUPTED or TIMEOUT.
        """

    def pause(self, seconds: float) -> float:
        """Return the seconds to wait before polling a run that was submitted ``seconds`` ago."""


# ``job.json`` identifies the job of a run.


@dataclass(frozen=True)
class JobReference:
    """The job of a run, as recorded in ``job.json``.

    Attributes:
        id: The scheduler's job id, or None if hidl was killed during the submission or got no response.
        cluster: Name of the cluster, or None if unknown.
        submitted: Time of the submission, in seconds since the epoch.
        directory: Directory the job was submitted from, if it is not the run's directory (ReFrame uses a different
            one).
        foreign: True if the run's directory is a copy, in which case its job is unknown.
        cancelled: True if hidl has cancelled the job.
    """

    id: str | None
    cluster: str | None
    submitted: float
    directory: str | None = None
    foreign: bool = False
    cancelled: bool = False


def write_reference(run: Run, scheduler: str, reference: JobReference) -> JobReference:
    """Write ``job.json`` and return the reference.

    If the disk is full, nothing is written. The job can still be found by its mark, the text that identifies the run.
    """
    document: dict[str, object] = {"id": reference.id, "cluster": reference.cluster, "submitted": reference.submitted}
    if reference.directory is not None:
        document["directory"] = reference.directory
    if reference.cancelled:
        document["cancelled"] = True
    with suppress(OSError):
        run.write("job", {"schema": "hidl.job/1", "scheduler": scheduler, **document, "of": identify(run.directory)})
    return reference


def read_reference(run: Run) -> JobReference:
    """Read ``job.json``.

    If the file is unreadable or a copy, the time at which the run's directory was changed replaces the submission time.
    """
    document = read_job(run)
    if document is None or is_copied(document, run):
        return JobReference(None, None, change_time(run.directory), foreign=document is not None)
    submitted = document.get("submitted")
    since = float(submitted) if isinstance(submitted, int | float) else 0.0
    id, cluster, directory = (_text(document.get(name)) for name in ("id", "cluster", "directory"))
    return JobReference(id, cluster, since, directory, cancelled=document.get("cancelled") is True)


def read_job(run: Run) -> dict[str, Any] | None:
    """Return the contents of ``job.json``, or None if it is missing or unreadable."""
    with suppress(HidlError):
        return run.document("job")
    return None


def is_newer(run: Run) -> bool:
    """Return whether ``status.json`` is newer than ``job.json``, which means that the job was resubmitted by hand."""
    try:
        return (run.directory / "status.json").stat().st_mtime_ns > (run.directory / "job.json").stat().st_mtime_ns
    except OSError:
        return False


def change_time(directory: Path) -> float:
    """Return when a directory was last changed or, if it is a copy, created, in seconds since the epoch."""
    return directory.stat().st_ctime


def identify(directory: Path) -> dict[str, object]:
    """Return the inode and path of a directory.

    Mounting it elsewhere changes only the path, but copying it changes both.
    """
    return {"inode": directory.stat().st_ino, "path": os.path.realpath(directory)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def is_copied(document: Mapping[str, object], run: Run) -> bool:
    """Return whether ``job.json`` was written in another directory, from which the run's directory was copied."""
    of = document.get("of")
    return isinstance(of, dict) and not (identify(run.directory).items() & of.items())


# Batch system programs, which run with a timeout and without any variables that would change their output.


QUERY_SECONDS = 30.0
SUBMIT_SECONDS = 120.0


class NoAnswer(Exception):
    """The batch system did not respond; the message gives the reason."""


class NoProgram(NoAnswer):
    """The batch system programs are not on PATH."""


class NotSubmitted(NoAnswer):
    """The batch system did not respond and cannot have accepted a job."""


def without_shell_options(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without exported bash options.

    If ``noexec`` or ``onecmd`` is exported, a job script does nothing and exits with status 0, and the script itself
    cannot undo that.
    """
    return {name: value for name, value in variables.items() if name not in ("SHELLOPTS", "BASHOPTS")}


@dataclass(frozen=True)
class Programs:
    """The command-line programs of a batch system.

    Attributes:
        dropped: Prefixes of variables to remove because they describe an enclosing job or act as options.
        unreachable: Matches error messages that mean that the server did not respond.
        waiting: Matches lines that are printed while a program waits for the server.
        kept: Variables to keep despite their prefix.
        added: Variables to set.
        variables: Function that returns the environment to start from.
    """

    dropped: tuple[str, ...]
    unreachable: re.Pattern[str]
    waiting: re.Pattern[str] = re.compile(r"(?!)")
    kept: frozenset[str] = frozenset()
    added: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[], Mapping[str, str]] = lambda: os.environ

    def environment(self, keep: Collection[str] = ()) -> dict[str, str]:
        """Return the environment for the programs; ``keep`` lists additional variables to keep."""
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
        """Run a program and return its output, regardless of its exit status.

        Raises ``NoAnswer`` after ``timeout`` seconds or if the server did not respond, and ``NoProgram`` if the program
        cannot be started.
        """
        try:
            completed = process.run(command, timeout=timeout, check=False, cwd=cwd, env=self.environment(keep))
        except ProcessFailed as error:
            if error.status == -signal.SIGKILL:
                raise NoAnswer(f"{command[0]} timed out after {timeout:g} s") from error
            raise NoProgram(f"{command[0]} cannot be started: {error.output}") from error
        return completed if completed.status == 0 else self.without_progress(completed)

    def without_progress(self, failed: Completed) -> Completed:
        """Remove ``waiting`` lines from the output of a failed program.

        Raises ``NoAnswer`` if the server is unreachable.
        """
        printed = [text.splitlines() for text in (failed.stdout, failed.stderr)]
        stdout, stderr = (
            "\n".join(line for line in lines if line.strip() and not self.waiting.search(line)) for lines in printed
        )
        is_silent = not (stdout or stderr) and any(printed)
        if is_silent or self.unreachable.search(f"{stderr}\n{stdout}"):
            raise NoAnswer(complaint(failed))
        return replace(failed, stdout=stdout, stderr=stderr)


def batches(ids: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    """Split job ids into groups of ``size``, because Linux limits a command line and its environment to 2 MiB."""
    return (ids[first : first + size] for first in range(0, len(ids), size))


def whole_lines(completed: Completed) -> list[str]:
    """Return the lines of a listing. Raises ``NoAnswer`` if the last line is incomplete, since jobs may be missing."""
    if completed.status == 0 and completed.stdout and not completed.stdout.endswith("\n"):
        raise NoAnswer(f"{Path(completed.command[0]).name} printed incomplete output")
    return completed.stdout.splitlines()


def complaint(completed: Completed) -> str:
    """Return a program's error message, or else its output, on one line and without the program's name."""
    lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines()
    name = re.escape(Path(completed.command[0]).name)
    short = [re.sub(rf"^({name}(-\w+)?: )?((error|fatal): )?", "", line, flags=re.IGNORECASE).strip() for line in lines]
    return "; ".join(line for line in short[-5:] if line) or f"status {completed.status}"


# The guard of an interactive job is a process that cancels the job if hidl is killed while the client, such as salloc,
# hangs.


_GRACE_SECONDS = 5
#: Reads the client's pid, and then a line that hidl writes when it finishes. If the input ends before that line, hidl
#: has died.
_SCRIPT = """
read -r client && [ "$client" != done ] || exit 0
read -r _ && exit 0
sleep "$1"
if [ "$(cat "/proc/$client/comm" 2>/dev/null)" = "$2" ]; then kill -KILL "$client"; fi
shift 2
cd /  # the current directory may contain another user's Python modules
exec "$@" >/dev/null 2>&1
"""


@contextmanager
def guarded(run: Run, program: str) -> Iterator[Callable[[int], object]]:
    """Start a guard for an interactive run, and yield a function that sends the guard the pid of the client.

    ``program`` is the client's name, such as ``salloc``.
    """
    cancel = (sys.executable, "-m", "hidl_cli", "cancel", str(run.directory))
    command = ("sh", "-c", _SCRIPT, "sh", str(_GRACE_SECONDS), program, *cancel)
    with Path(os.devnull).open("wb") as nowhere:
        guard = process.start_conversation(command, env=os.environ, stderr=nowhere)
    assert guard.stdin is not None
    assert guard.stdout is not None
    pipe = guard.stdin

    def send(text: str) -> None:
        with suppress(BrokenPipeError):
            pipe.write(f"{text}\n".encode())

    try:
        yield lambda client: send(str(client))
    finally:
        send("done")
        pipe.close()
        guard.stdout.close()
        guard.wait()


@dataclass(frozen=True)
class Receipt:
    """The id of a submitted job, with its cluster if the batch system reported one."""

    id: str
    cluster: str | None = None


class Refused(Exception):
    """The batch system rejected the job.

    Attributes:
        words: Error message from the batch system.
        hint: What the user can do about it.
        fact: The site's limits or names that explain the error.
    """

    def __init__(self, words: str, *, hint: str, fact: str | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.hint = hint
        self.fact = fact


class Backend(ABC):
    """A batch system. Methods that run a program raise ``NoAnswer`` if the system does not respond.

    The argument ``cluster`` is the name of a cluster, or None for the programs' default cluster.
    """

    #: The batch system's entry in ``hidl_cli/batch_systems.py``.
    traits: BatchSystem
    programs: Programs
    #: Value of ``decision.Clock.grace``.
    grace_seconds = 60.0
    #: Shortest time between two queries, in seconds.
    first_interval = 1.0
    #: True if ``history`` queries the server by job id. Jobs that it reports as pending or running are then trusted.
    asks_by_id = False
    #: Longest time that the system takes to end a job, in seconds.
    end_seconds = 90.0

    @property
    def name(self) -> str:
        """Name of the scheduler in site files."""
        return self.traits.name

    @cached_property
    def functions(self) -> str:
        """Contents of ``NAME.sh`` next to the backend module NAME, or of ``job.sh`` if the backend is a package."""
        module = Path(inspect.getfile(type(self)))
        script = module.with_name("job.sh") if module.stem == "__init__" else module.with_suffix(".sh")
        return script.read_text(encoding="utf-8")

    @abstractmethod
    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """Return the lines that request the allocation in a job script."""

    def this_cluster(self) -> str | None:
        """Return the name of the default cluster, possibly from an earlier query, or None if unknown."""
        return self._cluster

    def ping(self) -> None:
        """Check that the system responds, and update ``this_cluster``."""
        self._cluster = self._query_cluster()

    @abstractmethod
    def submit(self, run: Run) -> Receipt | None:
        """Submit the run's script from its directory; return None if no job id was printed.

        Raises ``Refused``, ``NotSubmitted``, or ``NoAnswer`` if the job may have been accepted.
        """

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        return None

    def check(self, run: Run) -> None:
        """Raise ``Refused`` if the system reports that it would reject the run's script. Nothing is submitted."""
        return

    @abstractmethod
    def query(self, cluster: str | None) -> Sequence[str]:
        """Return the lines that describe the user's jobs, including those that ended recently."""

    @abstractmethod
    def parse(self, lines: Iterable[str]) -> list[Job]:
        """Parse the lines of ``query``."""

    def belongs_to(self, job: Job, run: Run, reference: JobReference) -> bool:
        """Return whether the job belongs to the run, that is, whether its mark is the directory of the run.

        The directory's path may differ on the scheduler's host, but it always ends in the run's id.
        """
        directory = reference.directory or run.directory
        if job.mark == realpath(directory):
            return True
        if reference.directory is not None or Path(job.mark).name != run.id:
            return False
        try:
            return Path(job.mark).samefile(directory)
        except OSError:
            return True

    def find(self, jobs: Iterable[Job], run: Run, reference: JobReference) -> Job | None:
        """Return the run's job from ``jobs``, or None if it is missing.

        Ids alone are not trusted, since a reinstalled server reuses them: if a job's mark is known, it must match too.
        If the run's job id is unknown, the latest job with a matching mark is returned.
        """
        if reference.id is not None:
            same = (job for job in jobs if job.id == reference.id)
            return next((job for job in same if not job.mark or self.belongs_to(job, run, reference)), None)
        own = (job for job in jobs if job.mark and self.belongs_to(job, run, reference))
        return max(own, key=lambda job: _submission_order(job.id), default=None)

    @abstractmethod
    def kill(self, id: str, cluster: str | None) -> None:
        """Cancel a job unless it has ended. Raises ``HidlError`` if the system refuses."""

    def hint(self) -> str:
        """Return the hint for errors raised when the system does not respond."""
        return "nothing was submitted; try again later"

    def reaches(self, cluster: str) -> bool:
        """Return whether jobs on ``cluster`` can be queried from this host."""
        return cluster == self.this_cluster()

    def history(self, ids: Collection[str | None], since: float, cluster: str | None) -> list[Job]:
        """Return recorded jobs that ``query`` no longer lists.

        Args:
            ids: Job ids, each of which is None if unknown.
            since: A time before the first of these jobs was submitted, in seconds since the epoch.
            cluster: Cluster that the jobs run on.
        """
        return []

    def look_up(self, id: str, cluster: str | None) -> Job | None:
        """Query a job that ``query`` does not list. Returns None if the job's id is unknown to the system.

        A listing that was cut off between two lines may lack a job.
        """
        return None

    def never_starts(self, job: Job) -> StartBlocker | None:
        """Return the reason why a pending job will never start, or None if it may."""
        return None

    @cached_property
    def _cluster(self) -> str | None:
        with suppress(NoAnswer):
            return self._query_cluster()
        return None

    def _query_cluster(self) -> str | None:
        completed = self.programs.call(*self.traits.cluster_command)
        if completed.status != 0:
            raise NoAnswer(complaint(completed))
        named = re.search(self.traits.cluster_name, completed.stdout, re.MULTILINE)
        return named[1] if named else None


def options(header: Sequence[str], prefix: str, *, without: Collection[str] = ()) -> list[str]:
    """Return the options in a job header as command-line arguments.

    Args:
        header: Lines of the header, in which an option's value follows ``=`` or is the next word.
        prefix: Prefix of each line, such as ``#SBATCH``.
        without: Options to leave out, such as ``--output`` or ``-o``.
    """
    words: list[str] = []
    for line in header:
        found = shlex.split(line.removeprefix(prefix))
        if found and found[0].partition("=")[0] not in without:
            words += found
    return words


def refusal(completed: Completed, hints: Iterable[tuple[str, str]]) -> Refused:
    """Return the error for a rejected job, with the first hint whose pattern matches the program's error message."""
    words = complaint(completed)
    fitting = [hint for pattern, hint in hints if re.search(pattern, words, re.IGNORECASE)]
    general = f"this error is from {completed.command[0]}; the script is job.sh in the run's directory"
    return Refused(words, hint=fitting[0] if fitting else general)


def _submission_order(id: str) -> tuple[int, str]:
    """Return a sort key for job ids: the first digits, then the whole id."""
    digits = re.match(r"\d+", id)
    return (int(digits.group()) if digits else 0, id)


@dataclass(frozen=True)
class EnclosingJob:
    """The allocation that a process runs in. A field is None if the environment does not contain it.

    Attributes:
        id: Id of the job.
        nodes: Number of nodes.
        cpus: Number of CPUs on the node that has the fewest.
        queue: Slurm partition.
    """

    id: str
    nodes: int | None = None
    cpus: int | None = None
    queue: str | None = None


def enclosing_job(scheduler: str | None, environment: Mapping[str, str]) -> EnclosingJob | None:
    """Return the batch job described by the environment, or None if the description is missing or incomplete."""
    system = batch_systems.system(scheduler)
    if system is None or system.name == batch_systems.SSH or not environment.get(system.job_id):
        return None
    if system.name == "slurm" and not environment.get("SLURM_JOB_NODELIST"):
        return None
    each = re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    count = environment.get("SLURM_JOB_NUM_NODES") or environment.get("FLUX_JOB_NNODES") or ""
    nodes = int(count) if count.isdecimal() else None
    for name in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        with suppress(OSError, KeyError):
            nodes = nodes or len(set(Path(environment[name]).read_text(encoding="utf-8").split()))
    return EnclosingJob(
        environment[system.job_id],
        nodes=nodes,
        cpus=min(map(int, each), default=None),
        queue=environment.get("SLURM_JOB_PARTITION"),
    )

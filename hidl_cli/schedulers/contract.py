"""What every scheduler offers to the rest of hidl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hidl_cli.launch.allocation import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
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

"""Submit, poll and cancel jobs on any batch system through its ``Backend``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition, SchedulerUnreachable, SubmitRefused
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers.backend import (
    Backend,
    JobReference,
    NoAnswer,
    NoProgram,
    NotSubmitted,
    Refused,
    guarded,
    read_reference,
    write_reference,
)
from hidl_cli.schedulers.decision import read_status
from hidl_cli.site.schema import Policies

if TYPE_CHECKING:
    from hidl_cli.schedulers.poller import Poller

_SEARCHES = 3


class BatchScheduler:
    """A ``Scheduler`` for batch systems."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.traits.name
        self.submits_with: str | None = backend.traits.submit
        self.directory_variable = backend.traits.submit_directory
        self._title = backend.traits.title

    @cached_property
    def _poller(self) -> Poller:
        from hidl_cli.schedulers.poller import Poller  # not loaded for a dry run

        return Poller(self.backend)

    @property
    def functions(self) -> str:
        return self.backend.functions

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        return self.backend.header(allocation, policies)

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        return self._poller.poll(runs)

    def pause(self, seconds: float) -> float:
        # Most polls only read the run's directory; the scheduler is queried less often.
        return min(2.0, max(min(0.2, self.backend.first_interval / 5), seconds / 20))

    def adopt(self, run: Run, job: str, directory: str) -> None:
        write_reference(run, self.name, JobReference(job, self.backend.this_cluster(), time.time(), directory))

    def submit(self, run: Run) -> None:
        """Submit the run's script exactly once: after an unclear failure, search for the job instead of retrying.

        In addition to the errors raised by ``Scheduler.submit``, raises ``MissingPrecondition`` if the batch system
        programs are not found.
        """
        self._ping(run)
        reference = write_reference(run, self.name, JobReference(None, self.backend.this_cluster(), time.time()))
        try:
            job = self.backend.submit(run)
        except Refused as refused:
            raise self._refused(run, refused) from refused
        except MissingPrecondition as missing:
            run.end_as(State.REFUSED, reason=missing.message.replace(":\n  ", ": ").replace("\n  ", "; "))
            raise
        except NotSubmitted as error:
            raise self._not_submitted(run, error) from error
        except NoAnswer as error:
            self._find_submitted(run, reference, str(error))
            return
        except KeyboardInterrupt:
            self._undo_submission(run)
            raise
        if job is None:
            self._find_submitted(run, reference, f"{self.submits_with} printed no job id")
            return
        write_reference(run, self.name, replace(reference, id=job.id, cluster=job.cluster or reference.cluster))

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        return self.backend.interactive(header, mark, terminal=terminal)

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """Run the command and, while it runs, keep updating the file ``beat`` in the run's directory."""
        command = self.interactive(header, run.id, terminal=terminal)
        if command is None:
            raise MissingPrecondition(f"interactive shells are not supported with {self._title}")
        self._ping(run)
        try:
            self.backend.check(run)
        except Refused as refused:
            raise self._refused(run, refused) from refused
        except NoAnswer as error:
            raise self._not_submitted(run, error) from error
        write_reference(run, self.name, JobReference(None, self.backend.this_cluster(), time.time()))
        with guarded(run, command[0]) as started:
            return process.attend(
                command,
                cwd=run.directory,
                env=self.backend.programs.environment(),
                deferred=deferred,
                started=started,
                beat=lambda: _beat(run.directory / "beat"),
            )

    def release(self, run: Run) -> None:
        """End the job and wait until the batch system reports its end."""
        try:
            self.backend.ping()
            job = self._poller.find(run, max_age=0)
            if job is None or job.state.is_final:
                return
            self.backend.kill(job.id, None)
            self._await_end(run)
        except NoAnswer as error:
            raise SchedulerUnreachable(
                f"{self._title} does not respond, and the job of {run.id} may still be running: {error}",
                hint=f"try again later with: hidl cancel {run.id}",
            ) from error

    def cancel(self, run: Run, *, state: State) -> bool:
        """Cancel the job and wait until the batch system reports its end.

        Raises ``SchedulerUnreachable`` if the batch system does not respond (the job continues), and ``HidlError`` if
        the job does not end or the user may not cancel it.
        """
        recorded = read_status(run)
        if recorded.state is State.COMPLETED:
            return False
        try:
            self.backend.ping()
            if not recorded.is_settled:
                self._end(run, state)
                return True
            job = self._poller.find(run, max_age=0)  # it may have been requeued since its end was recorded
            if job is None or job.state.is_final:
                return False
            self._end(run, state)
        except NoAnswer as error:
            if recorded.is_settled:
                return False
            raise SchedulerUnreachable(
                f"run {run.id} could not be cancelled and continues: {error}",
                hint=f"try again later with: hidl cancel {run.id}",
            ) from error
        return True

    def _ping(self, run: Run) -> None:
        """Check that the batch system responds before anything is submitted."""
        try:
            self.backend.ping()
        except NoProgram as error:
            run.end_as(State.REFUSED, reason=f"not submitted: {self._title} not found on this host")
            raise MissingPrecondition(
                f"{self._title} not found on this machine: {error}",
                hint=f"run hidl on a login node of the site, or load the module that puts {self.submits_with} on PATH",
            ) from error
        except NoAnswer as error:
            raise self._not_submitted(run, error) from error

    def _refused(self, run: Run, refused: Refused) -> SubmitRefused:
        """Record that the job was rejected, and return the error."""
        run.end_as(State.REFUSED, reason=refused.words)
        fact = f"\n{refused.fact}" if refused.fact else ""
        return SubmitRefused(f"{self._title} rejected the job: {refused.words}{fact}", hint=refused.hint)

    def _not_submitted(self, run: Run, error: NoAnswer) -> SchedulerUnreachable:
        """Record that the job was not submitted, and return the error."""
        run.end_as(State.REFUSED, reason=f"not submitted: {error}")
        return SchedulerUnreachable(f"{self._title} does not respond: {error}", hint=self.backend.hint())

    def _find_submitted(self, run: Run, reference: JobReference, why: str) -> None:
        """After a submission with an unknown outcome, find the job by the text that identifies its run.

        ``why`` explains why the job's id is unknown.
        """
        for attempt in range(_SEARCHES):
            time.sleep(attempt)
            try:
                job = self._poller.find(run, max_age=0)
            except (NoAnswer, HidlError):
                break
            if job is not None:
                write_reference(run, self.name, replace(reference, id=job.id))
                return
        raise SchedulerUnreachable(
            f"unknown whether {self._title} accepted the job of run {run.id}: {why}",
            hint=f"do not resubmit it before `hidl status {run.id}` shows that {self._title} responds again",
        )

    def _undo_submission(self, run: Run) -> None:
        """Cancel the job if it was submitted before the user's interrupt."""
        with suppress(NoAnswer, HidlError):
            job = self._poller.find(run, max_age=0)
            if job is not None:
                self.backend.kill(job.id, None)
            run.end_as(State.INTERRUPTED, reason="interrupted during the submission")

    def _end(self, run: Run, state: State) -> None:
        from hidl_cli.schedulers.poller import SUBMISSION_SECONDS

        reference = read_reference(run)
        job = self._poller.find(run, max_age=0)
        id = reference.id or (job.id if job else None)
        if id is None and time.time() - reference.submitted < SUBMISSION_SECONDS:
            raise HidlError(
                f"run {run.id} is being submitted, or hidl was killed during the submission: "
                f"{self._title} has no job for it yet",
                hint=f"try again in a few minutes with: hidl cancel {run.id}",
            )
        if job is None:
            run.end_as(state, reason=f"{self._title} had no job for this run")
            return
        if reference.id is None:
            write_reference(run, self.name, replace(reference, id=job.id))
        reason = run.directory / "reason"
        with suppress(OSError):  # the job script reads this file; if the disk is full, `end_as` records the state
            write_text(reason, state.value)
        try:
            self._kill_with_next(run, job.id, self._poller.elsewhere(reference.cluster))
        except (NoAnswer, HidlError):
            reason.unlink(missing_ok=True)
            raise
        write_reference(run, self.name, replace(reference, id=job.id, cancelled=True))
        self._await_end(run)
        if read_status(run).state is not State.COMPLETED:
            run.end_as(state, reason="cancelled by hidl")

    def _kill_with_next(self, run: Run, id: str, cluster: str | None) -> None:
        """Cancel the next job, which would continue the run, and then the job ``id``."""
        next_job = run.next_job()
        if next_job is not None and next_job != id:
            self.backend.kill(next_job, cluster)
        self.backend.kill(id, cluster)
        run.forget_next_job()

    def _await_end(self, run: Run) -> None:
        """Wait until the scheduler reports the end of the job, because processes may outlive the recorded end."""
        seconds = self.backend.end_seconds
        deadline = time.monotonic() + seconds
        pause = 0.1
        while True:
            job = self._poller.find(run, max_age=pause)
            if job is None or job.state.is_final:
                return
            if time.monotonic() > deadline:
                raise HidlError(
                    f"job {job.id} of run {run.id} was cancelled {seconds:.0f} s ago and is still {job.word}",
                    hint=f"check hidl status {run.id}; if a node does not respond, the site's support can end the job",
                )
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)


def _beat(file: Path) -> None:
    """Update the file to show that hidl is alive."""
    with suppress(OSError):
        write_text(file, f"{time.time()}\n")

"""The scheduler that every batch system is to hidl: submission, polling and cancellation over its ``Backend``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition, SchedulerUnreachable, SubmitRefused
from hidl_cli.launch.placement import Allocation
from hidl_cli.process import Deferred
from hidl_cli.record.run import Run, State, Status
from hidl_cli.schedulers.backend import (
    Backend,
    NoAnswer,
    NoProgram,
    NotTaken,
    Refused,
    Ticket,
    guarded,
    read_ticket,
    write_ticket,
)
from hidl_cli.schedulers.decision import read_status
from hidl_cli.schedulers.poller import SUBMISSION_SECONDS, Poller
from hidl_cli.site.schema import Policies

_SEARCHES = 3


class Batch:
    """Hands job scripts to a batch system."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.traits.name
        self.submits_with: str | None = backend.traits.submit
        self.directory_variable = backend.traits.submit_directory
        self._title = backend.traits.title
        self._poller = Poller(backend)

    @property
    def functions(self) -> str:
        """See ``Scheduler.functions``."""
        return self.backend.functions

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``."""
        return self.backend.header(allocation, policies)

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        return self._poller.poll(runs)

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: most polls read the run's directory alone, and the scheduler is asked less often."""
        return min(2.0, max(min(0.2, self.backend.first_interval / 5), seconds / 20))

    def adopt(self, run: Run, job: str, directory: str) -> None:
        """See ``Scheduler.adopt``."""
        write_ticket(run, self.name, Ticket(job, self.backend.this_cluster(), time.time(), directory))

    def submit(self, run: Run) -> None:
        """See ``Scheduler.submit``.

        A failure that leaves open whether the job was taken is looked into: a run is never submitted twice. Raises
        ``MissingPrecondition`` if the batch system's programs are not found.
        """
        self._ping(run)
        card = write_ticket(run, self.name, Ticket(None, self.backend.this_cluster(), time.time()))
        try:
            receipt = self.backend.submit(run)
        except Refused as refused:
            raise self._refused(run, refused) from refused
        except MissingPrecondition as missing:
            _note_refusal(run, missing.message.replace(":\n  ", ": ").replace("\n  ", "; "))
            raise
        except NotTaken as silence:
            raise self._not_submitted(run, silence) from silence
        except NoAnswer as silence:
            self._look_for_it(run, card, str(silence))
            return
        except KeyboardInterrupt:  # while it was being submitted
            self._take_back(run)
            raise
        if receipt is None:
            self._look_for_it(run, card, f"{self.submits_with} printed no job id")
            return
        write_ticket(run, self.name, replace(card, id=receipt.id, cluster=receipt.cluster or card.cluster))

    def interactive(self, header: Sequence[str], mark: str, *, terminal: bool) -> tuple[str, ...] | None:
        """See ``Scheduler.interactive``."""
        return self.backend.interactive(header, mark, terminal=terminal)

    def attend(self, run: Run, header: Sequence[str], deferred: Deferred, *, terminal: bool) -> int:
        """See ``Scheduler.attend``; meanwhile the file ``beat`` in the run's directory changes."""
        command = self.interactive(header, run.id, terminal=terminal)
        if command is None:
            raise MissingPrecondition(f"hidl opens no shells with {self._title}")
        self._ping(run)
        try:
            self.backend.check(run)
        except Refused as refused:
            raise self._refused(run, refused) from refused
        except NoAnswer as silence:
            raise self._not_submitted(run, silence) from silence
        write_ticket(run, self.name, Ticket(None, self.backend.this_cluster(), time.time()))
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
        """See ``Scheduler.release``; waits until the batch system says that nothing of the job is left."""
        try:
            self.backend.ping()
            job = self._poller.find(run, max_age=0)
            if job is None or job.state.is_final:
                return
            self.backend.kill(job.id, None)
            self._await_end(run)
        except NoAnswer as silence:
            raise SchedulerUnreachable(
                f"{self._title} does not answer, and may not have ended the job of {run.id}: {silence}",
                hint=f"later: hidl cancel {run.id}",
            ) from silence

    def cancel(self, run: Run, *, state: State) -> bool:
        """See ``Scheduler.cancel``; waits until the batch system says that nothing of the job is left.

        Raises ``SchedulerUnreachable`` if it does not answer (the job goes on), ``HidlError`` if the job may not be
        cancelled by this user, or does not end.
        """
        said = read_status(run)
        if said.state is State.COMPLETED:
            return False
        try:
            self.backend.ping()
            if not said.is_settled:
                self._end(run, state)
                return True
            job = self._poller.find(run, max_age=0)  # it may have come back since its end was written down
            if job is None or job.state.is_final:
                return False
            self._end(run, state)
        except NoAnswer as silence:
            if said.is_settled:
                return False
            raise SchedulerUnreachable(
                f"run {run.id} could not be cancelled, and goes on: {silence}", hint=f"later: hidl cancel {run.id}"
            ) from silence
        return True

    def _ping(self, run: Run) -> None:
        """Make sure that the batch system answers before anything is submitted."""
        try:
            self.backend.ping()
        except NoProgram as error:
            _note_refusal(run, f"not submitted: {self._title} not found on this host")
            raise MissingPrecondition(
                f"{self._title} not found on this machine: {error}",
                hint=f"run hidl on a login node of the site, or load the module that puts {self.submits_with} on PATH",
            ) from error
        except NoAnswer as silence:
            raise self._not_submitted(run, silence) from silence

    def _refused(self, run: Run, refused: Refused) -> SubmitRefused:
        _note_refusal(run, refused.words)
        fact = f"\n{refused.fact}" if refused.fact else ""
        return SubmitRefused(f"{self._title} refused the job: {refused.words}{fact}", hint=refused.hint)

    def _not_submitted(self, run: Run, silence: NoAnswer) -> SchedulerUnreachable:
        _note_refusal(run, f"not submitted: {silence}")
        return SchedulerUnreachable(f"{self._title} does not answer: {silence}", hint=self.backend.hint())

    def _look_for_it(self, run: Run, card: Ticket, why: str) -> None:
        """The submission had no readable answer: a job that was taken nevertheless carries the run's mark."""
        for attempt in range(_SEARCHES):
            time.sleep(attempt)
            try:
                job = self._poller.find(run, max_age=0)
            except (NoAnswer, HidlError):
                break
            if job is not None:
                write_ticket(run, self.name, replace(card, id=job.id))
                return
        raise SchedulerUnreachable(
            f"whether {self._title} took the job of run {run.id} is not known: {why}",
            hint=f"hidl status {run.id} shows when {self._title} answers again; do not submit it again before",
        )

    def _take_back(self, run: Run) -> None:
        """The user interrupted the submission: cancel what may have been taken."""
        with suppress(NoAnswer, HidlError):
            job = self._poller.find(run, max_age=0)
            if job is not None:
                self.backend.kill(job.id, None)
            run.end_as(State.INTERRUPTED, reason="interrupted while it was submitted")

    def _end(self, run: Run, state: State) -> None:
        card = read_ticket(run)
        job = self._poller.find(run, max_age=0)
        id = card.id or (job.id if job else None)
        if id is None and time.time() - card.submitted < SUBMISSION_SECONDS:
            raise HidlError(
                f"run {run.id} is being submitted, or hidl was killed while it submitted it: "
                f"{self._title} has no job of it yet",
                hint=f"in a few minutes: hidl cancel {run.id}",
            )
        if job is None:
            run.end_as(state, reason=f"{self._title} knew no job of it")
            return
        if card.id is None:
            write_ticket(run, self.name, replace(card, id=job.id))
        reason = run.directory / "reason"
        with suppress(OSError):  # the job's script reads why it ends; on a full disk, it is written down below
            write_text(reason, state.value)
        try:
            self.backend.kill(job.id, self._poller.elsewhere(card.cluster))
        except (NoAnswer, HidlError):
            reason.unlink(missing_ok=True)
            raise
        write_ticket(run, self.name, replace(card, id=job.id, cancelled=True))
        self._await_end(run)
        if read_status(run).state is not State.COMPLETED:
            run.end_as(state, reason="cancelled by hidl")

    def _await_end(self, run: Run) -> None:
        """Return when no part of the job is left: the job's own word comes before its last processes are gone."""
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
                    hint=f"a node that does not answer? hidl status {run.id}; the site's staff can end it",
                )
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)


def _note_refusal(run: Run, reason: str) -> None:
    """Write down that the run was not submitted."""
    run.end_as(State.REFUSED, reason=reason)


def _beat(file: Path) -> None:
    """Change the file: a sign of life."""
    with suppress(OSError):
        write_text(file, f"{time.time()}\n")

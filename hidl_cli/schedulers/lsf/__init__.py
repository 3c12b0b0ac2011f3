"""IBM Spectrum LSF: jobs through ``bsub``, ``bjobs``, ``bkill`` and ``bhist``.

How it is asked, and why no library stands between, is told in docs/explanation/schedulers.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hidl_cli.documents import write_text
from hidl_cli.errors import SchedulerUnreachable, SubmitRefused
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf import commands
from hidl_cli.schedulers.lsf.header import header, options
from hidl_cli.schedulers.lsf.judgement import is_settled
from hidl_cli.schedulers.lsf.poll import Poller
from hidl_cli.schedulers.lsf.ticket import Ticket, keep
from hidl_cli.site.schema import Policies

_CANCEL_SECONDS = 45.0  # LSF sends SIGINT, SIGTERM and SIGKILL ten seconds apart
_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")


class Lsf:
    """Runs job scripts through LSF."""

    name = "lsf"

    def __init__(self) -> None:
        self._poller = Poller()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``."""
        return header(allocation, policies)

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """See ``Scheduler.submit``. The time limit is LSF's to hold: it stands in the script's header.

        LSF reads ``#BSUB`` lines from standard input alone, or, as on Summit, from a script that is named alone. So
        they are given as options too, which every LSF takes. The job's description carries the run's id: a hidl that
        was killed before it could note the job finds it by that.
        """
        words = options(run.script.read_text(encoding="utf-8"))
        directory = str(run.directory.resolve())
        where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand a %
        own = {"HIDL_RUN_DIRECTORY": directory, "HIDL_RUN_ID": run.id}
        opened = Ticket(None, commands.cluster(), time.time())
        keep(run, opened)
        try:
            answer = commands.call(
                *("bsub", *words, *where, "-Jd", run.id, "./job.sh"),
                timeout=commands.SUBMIT_SECONDS,
                cwd=run.directory,
                own=own.items(),
            )
        except SchedulerUnreachable as error:
            raise _no_answer(error, run) from error
        accepted = _SUBMITTED.search(f"{answer.stdout}\n{answer.stderr}")
        if accepted is None:
            raise _refused(commands.said(answer))
        keep(run, replace(opened, id=accepted[1]))

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``: one ``bjobs`` for all of them, and none where all have ended."""
        return self._poller.poll(runs)

    def cancel(self, run: Run, *, state: State) -> None:
        """See ``Scheduler.cancel``; ``SchedulerUnreachable`` where LSF does not take it: then nothing is done."""
        if is_settled(run.status()):  # not: final, for a job that LSF put back into its queue called itself cancelled
            return
        job = self._poller.find(run, max_age=0)
        write_text(run.directory / "reason", state.value)
        try:
            if job is not None:
                commands.kill(job.id)
        except SchedulerUnreachable:
            (run.directory / "reason").unlink(missing_ok=True)
            raise
        if job is not None and not self._ends_within(run, _CANCEL_SECONDS):
            raise SchedulerUnreachable(
                f"LSF took the order to end job {job.id}, but has not ended it within {_CANCEL_SECONDS:.0f} s",
                hint=f"hidl status {run.id} says when it has ended; `bkill -r {job.id}` takes it from LSF's list",
            )
        if not run.status().state.is_final:
            run.end_as(state)

    def _ends_within(self, run: Run, seconds: float) -> bool:
        """Does the job end in that time? LSF's word counts: the job's own comes before its last processes are gone."""
        deadline = time.monotonic() + seconds
        pause = 0.2
        while time.monotonic() < deadline:
            with suppress(SchedulerUnreachable):
                job = self._poller.find(run, max_age=pause)
                if job is None or job.stat in ("DONE", "EXIT", "PDONE", "PERR"):
                    return True
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)
        return False

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: most polls look at the run's directory alone, and LSF is asked less often."""
        return min(2.0, max(0.2, seconds / 20))


def _refused(words: str) -> SubmitRefused | SchedulerUnreachable:
    if commands.is_down(words):
        return commands.unreachable(words)
    return SubmitRefused(f"LSF does not take the job: {words}", hint="see `bqueues -l` for the limits of the queues")


def _no_answer(error: SchedulerUnreachable, run: Run) -> SubmitRefused | SchedulerUnreachable:
    if "threshold" in error.message.lower():  # bsub would try until others of the user's jobs have started
        return SubmitRefused(
            f"LSF does not take the job now: {error.message}", hint="wait until others of your jobs have begun"
        )
    return SchedulerUnreachable(
        error.message,
        hint=f"it may have taken the job all the same: look with `bjobs -a -Jd {run.id}` before you try again",
    )

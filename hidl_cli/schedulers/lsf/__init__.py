"""IBM Spectrum LSF: jobs through ``bsub``, ``bjobs``, ``bkill`` and ``bhist``.

How it is asked, and why no library stands between, is told in docs/explanation/schedulers.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, SchedulerUnreachable
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf import commands, submit
from hidl_cli.schedulers.lsf.header import header
from hidl_cli.schedulers.lsf.poll import Poller, is_over
from hidl_cli.site.schema import Policies

_CANCEL_SECONDS = 45.0  # LSF sends SIGINT, SIGTERM and SIGKILL ten seconds apart


class Lsf:
    """Runs job scripts through LSF."""

    name = "lsf"

    def __init__(self) -> None:
        self._poller = Poller()

    def header(self, allocation: Allocation, policies: Policies) -> tuple[str, ...]:
        """See ``Scheduler.header``."""
        return header(allocation, policies)

    def submit(self, run: Run, *, time_limit: float | None) -> None:
        """See ``Scheduler.submit``; the time limit stands in the script."""
        submit.submit(run, self._poller)

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``: one ``bjobs`` for all of them, and none where all have ended."""
        return self._poller.poll(runs)

    def cancel(self, run: Run, *, state: State) -> None:
        """See ``Scheduler.cancel``; ``SchedulerUnreachable`` where LSF does not take it: then nothing is done."""
        if is_over(run, run.status()):  # not: final, for a job that LSF put back into its queue called itself cancelled
            return
        job = self._poller.find(run, max_age=0)
        write_text(run.directory / "reason", state.value)
        try:
            if job is not None:
                commands.kill(job.id)
        except HidlError:
            (run.directory / "reason").unlink(missing_ok=True)
            raise
        if job is not None and not self._ends_within(run, _CANCEL_SECONDS):
            raise SchedulerUnreachable(
                f"LSF took the order to end job {job.id}, but has not ended it within {_CANCEL_SECONDS:.0f} s",
                hint=f"hidl status {run.id} says when it has ended; `bkill -r {job.id}` takes it from LSF's list",
            )
        if not run.status().state.is_final:
            run.end_as(state, reason=None if job else "LSF knew no job of it")

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

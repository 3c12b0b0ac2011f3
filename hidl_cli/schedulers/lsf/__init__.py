"""IBM Spectrum LSF: jobs through ``bsub``, ``bjobs``, ``bkill`` and ``bhist``.

How it is asked, and why no library stands between, is told in docs/explanation/schedulers.md.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import MissingPrecondition, ProcessFailed, SchedulerUnreachable, SubmitRefused
from hidl_cli.launch.allocation import Allocation
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.lsf import bjobs
from hidl_cli.schedulers.lsf.bjobs import Record
from hidl_cli.schedulers.lsf.header import header, options
from hidl_cli.schedulers.lsf.judgement import Judgement, is_settled, judge
from hidl_cli.site.schema import Policies

_SUBMIT_SECONDS = 120.0
_CANCEL_SECONDS = 45.0  # LSF sends SIGINT, SIGTERM and SIGKILL ten seconds apart
_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")


class Lsf:
    """Runs job scripts through LSF."""

    name = "lsf"

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
        directory = str(run.directory)
        where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand a %
        command = ["bsub", *words, *where, "-Jd", run.id, "./job.sh"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("HIDL_RUN_")}
        own |= {"HIDL_RUN_DIRECTORY": directory, "HIDL_RUN_ID": run.id}
        try:
            answer = process.run(
                command, cwd=run.directory, env=bjobs.environment(own), timeout=_SUBMIT_SECONDS, check=False
            )
        except ProcessFailed as error:
            raise _no_answer(error, run) from error
        accepted = _SUBMITTED.search(answer.stdout)
        if accepted is None:
            raise _refused(answer)
        job = {"scheduler": self.name, "id": accepted[1], "submitted": time.time()}
        run.write("job", {"schema": "hidl.job/1", **job})

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``: one ``bjobs`` for all of them, and none where all have ended."""
        if all(is_settled(run.status()) for run in runs):
            return [run.status() for run in runs]
        try:
            records = bjobs.ask()
        except SchedulerUnreachable as error:
            return [_as_known(run.status(), error) for run in runs]
        by_id = {record.id: record for record in records}
        by_run = {record.description: record for record in records}
        found = [by_id.get(_job(run).get("id", "")) or by_run.get(run.id) for run in runs]
        return [self._poll(run, record) for run, record in zip(runs, found, strict=True)]

    def _poll(self, run: Run, record: Record | None) -> Status:
        """How one run fares; what is final is written down. The job's own word is read after LSF's."""
        status = run.status()
        job = _job(run)
        now = time.time()
        unclear = now - job.get("unclear", now)
        pending = now - job.get("submitted", now)
        judgement = judge(status, record, pending=pending, unclear=unclear)
        if judgement.state is State.LOST and record is None:
            judgement = judge(status, _remembered(job), pending=pending, unclear=unclear)
        _note(run, job, record, now if judgement.unclear else None)
        if judgement.state.is_final and not is_settled(status):
            return _end(run, judgement, record)
        return replace(status, state=judgement.state, reason=judgement.reason)

    def cancel(self, run: Run, *, state: State) -> None:
        """See ``Scheduler.cancel``; ``SchedulerUnreachable`` where LSF does not take it: then nothing is done."""
        if is_settled(run.status()):  # not: final, for a job that LSF put back into its queue called itself cancelled
            return
        job = _job(run)
        id = job.get("id") or next((record.id for record in bjobs.ask() if record.description == run.id), None)
        write_text(run.directory / "reason", state.value)
        try:
            if id is not None:
                bjobs.kill(id)
        except SchedulerUnreachable:
            (run.directory / "reason").unlink(missing_ok=True)
            raise
        if id is None or _ends_within(run, id, _CANCEL_SECONDS):
            if not run.status().state.is_final:
                run.end_as(state)
            return
        raise SchedulerUnreachable(
            f"LSF took the order to end job {id}, but has not ended it within {_CANCEL_SECONDS:.0f} s",
            hint=f"hidl status {run.id} says when it has ended; `bkill -r {id}` takes it from LSF's list",
        )

    def pause(self, seconds: float) -> float:
        """See ``Scheduler.pause``: every 2 s in the beginning, every 30 s after five minutes."""
        return min(30.0, max(2.0, seconds / 10))


def _refused(answer: process.Completed) -> SubmitRefused | SchedulerUnreachable:
    words = " ".join((answer.stderr + answer.stdout).split()) or f"bsub ended with status {answer.status}"
    if bjobs.is_down(words):
        return SchedulerUnreachable(f"LSF does not answer: {words}", hint="try again in a while; `lsid` says more")
    return SubmitRefused(f"LSF does not take the job: {words}", hint="see `bqueues -l` for the limits of the queues")


def _no_answer(error: ProcessFailed, run: Run) -> Exception:
    if error.status == 127:
        return MissingPrecondition(
            f"bsub cannot be started: {error.output}", hint="run hidl where LSF's commands are on PATH: on a login node"
        )
    words = " ".join(error.output.split())
    if "threshold" in words.lower():  # LSF would go on trying until others of the user's jobs have started
        return SubmitRefused(
            f"LSF does not take the job now: {words}", hint="wait until others of your jobs have begun"
        )
    return SchedulerUnreachable(
        f"LSF does not answer: {words}",
        hint=f"it may have taken the job all the same: look with `bjobs -a -Jd {run.id}` before you try again",
    )


def _job(run: Run) -> Mapping[str, Any]:
    return run.document("job") or {}


def _as_known(status: Status, error: SchedulerUnreachable) -> Status:
    return status if is_settled(status) else replace(status, reason=error.message)


def _remembered(job: Mapping[str, Any]) -> Record | None:
    """What LSF's log files say of a job that bjobs has forgotten: asked for once, when it would be lost."""
    with suppress(SchedulerUnreachable):
        return next(iter(bjobs.history([job["id"]])), None) if "id" in job else None
    return None


def _note(run: Run, job: Mapping[str, Any], record: Record | None, unclear: float | None) -> None:
    """Keep what the next poll, maybe of another hidl, must know: the job's id, and since when it is unclear."""
    known = {"schema": "hidl.job/1", "scheduler": Lsf.name} | dict(job)
    if record is not None and "id" not in known:
        known |= {"id": record.id, "submitted": time.time()}
    if unclear is None:
        known.pop("unclear", None)
    else:
        known.setdefault("unclear", unclear)
    if known.keys() != job.keys():
        run.write("job", known)


def _end(run: Run, judgement: Judgement, record: Record | None) -> Status:
    """Write down how the run ended. Where hidl itself had it ended, that is the reason."""
    state = judgement.state
    if state is State.CANCELLED:
        with suppress(OSError, ValueError):
            state = State((run.directory / "reason").read_text(encoding="utf-8").strip())
    if state is State.REFUSED and record is not None:
        with suppress(SchedulerUnreachable):
            bjobs.kill(record.id)
    run.end_as(state, reason=judgement.reason)
    return run.status()


def _ends_within(run: Run, id: str, seconds: float) -> bool:
    """Does the job end in that time? LSF's word counts: the job's own comes before its last processes are gone."""
    deadline = time.monotonic() + seconds
    pause = 0.2
    while time.monotonic() < deadline:
        with suppress(SchedulerUnreachable):
            stat = {record.id: record.stat for record in bjobs.ask()}.get(id, "")
            if stat in ("", "DONE", "EXIT", "PDONE", "PERR"):
                return True
        time.sleep(pause)
        pause = min(2.0, pause * 1.5)
    return False

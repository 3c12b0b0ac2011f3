"""Ending a job, and seeing that it ended."""

from __future__ import annotations

import time
from contextlib import suppress

from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, SchedulerUnreachable
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.schedulers.slurm import programs, submit, ticket
from hidl_cli.schedulers.slurm.cluster import this_cluster
from hidl_cli.schedulers.slurm.fate import is_settled, said_by_the_job

#: Slurm gives the processes ``KillWait`` seconds (30 by default) between SIGTERM and SIGKILL; an epilog may follow.
END_SECONDS = 90.0


def cancel(run: Run, *, state: State) -> None:
    """Cancel the run's job and wait until Slurm says that nothing of it is left; it ends in ``state``.

    Raises ``SchedulerUnreachable`` where no controller answers (the job goes on), ``HidlError`` where the job may not
    be cancelled by this user, or does not end.
    """
    if is_settled(run, said_by_the_job(run)):
        return
    try:
        programs.ping()
        _end(run, state)
    except programs.NoAnswer as silence:
        if not said_by_the_job(run).state.is_final:
            (run.directory / "reason").unlink(missing_ok=True)
        raise SchedulerUnreachable(
            f"run {run.id} could not be cancelled, and goes on: {silence}", hint=f"later: hidl cancel {run.id}"
        ) from silence


def _end(run: Run, state: State) -> None:
    card = ticket.ticket_of(run)
    elsewhere = [] if card.cluster in (None, this_cluster()) else [f"--clusters={card.cluster}"]
    number = card.id or submit.find_job(run, card)
    if number is None and time.time() - card.submitted < ticket.SUBMISSION_SECONDS:
        raise HidlError(
            f"run {run.id} is being submitted, or hidl was ended while it submitted it: Slurm knows no job of it yet",
            hint=f"in a few minutes: hidl cancel {run.id}",
        )
    if number is None:
        run.end_as(state, reason="Slurm knew no job of it")
        return
    with suppress(OSError):  # the job's script reads why it ends; where there is no room, it is written down below
        write_text(run.directory / "reason", state.value)
    completed = programs.call("scancel", *elsewhere, number)
    if completed.status != 0 and "Invalid job id" not in completed.stderr:
        raise HidlError(f"run {run.id} could not be cancelled: {programs.said(completed)}")
    _await_end(run, elsewhere, number)
    if not said_by_the_job(run).state.is_final:
        run.end_as(state, reason="cancelled by hidl")


def _await_end(run: Run, elsewhere: list[str], number: str) -> None:
    """Return when no part of the job is there any more; a job that completed meanwhile has said so itself."""
    deadline = time.monotonic() + END_SECONDS
    pause = 0.1
    while True:
        completed = programs.call("squeue", *elsewhere, "--noheader", "--all", f"--jobs={number}", "--format=%T %N")
        lines = [line for line in completed.stdout.splitlines() if line.strip() and not line.startswith("CLUSTER")]
        if not lines:
            return
        if time.monotonic() > deadline:
            raise HidlError(
                f"job {number} of run {run.id} was cancelled {END_SECONDS:.0f} s ago and is still {lines[0].strip()}",
                hint="a node that does not answer? scontrol show job tells; the site's staff can end it",
            )
        time.sleep(pause)
        pause = min(2.0, pause * 1.5)

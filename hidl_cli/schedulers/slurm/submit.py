"""Handing a job script to ``sbatch``: once, whatever happens meanwhile."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace

from hidl_cli.errors import MissingPrecondition, SchedulerUnreachable, SubmitRefused
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.schedulers.slurm import jobs, programs, ticket
from hidl_cli.schedulers.slurm.cluster import this_cluster
from hidl_cli.schedulers.slurm.header import options_of
from hidl_cli.schedulers.slurm.refusals import explain
from hidl_cli.schedulers.slurm.ticket import Ticket

#: Defaults that users keep in their environment, by the option that they stand for. sbatch lets them win over the
#: script, so they hold only where the script says nothing; other SBATCH_ variables never do.
_DEFAULTS = {
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "partition": "SBATCH_PARTITION",
    "clusters": "SBATCH_CLUSTERS",
    "wckey": "SBATCH_WCKEY",
}
_SEARCHES = 3


def submit(run: Run) -> None:
    """Submit ``run.script`` from the run's directory.

    Raises ``MissingPrecondition`` where there is no Slurm, ``SchedulerUnreachable`` where no controller answers, and
    ``SubmitRefused``, in sbatch's words, where the job is not admitted. A failure that leaves open whether the job was
    taken is looked into before: it is never submitted twice.
    """
    _preflight(run)
    card = ticket.open_ticket(run, this_cluster())
    asked = options_of(run.script)
    keep = [variable for option, variable in _DEFAULTS.items() if option not in asked]
    try:
        completed = programs.call(
            "sbatch", "--parsable", run.script, timeout=programs.SUBMIT_SECONDS, cwd=run.directory, keep=keep
        )
    except programs.NoAnswer as silence:
        _look_for_it(run, card, str(silence))
        return
    except KeyboardInterrupt:  # while sbatch was at it
        _take_back(run, card)
        raise
    if completed.status != 0:
        words = programs.said(completed)
        fact, hint = explain(words, asked)
        run.end_as(State.REFUSED, reason=words)
        raise SubmitRefused(f"Slurm refused the job: {words}" + (f"\n{fact}" if fact else ""), hint=hint)
    # A site's filter may print more, before or after.
    told = re.search(r"^(\d+)(?:;(\S+))?\s*$", completed.stdout, re.MULTILINE)
    if told is None:
        _look_for_it(run, card, f"sbatch printed no job id, but: {completed.stdout.strip()[-300:]}")
        return
    ticket.keep(run, replace(card, id=told[1], cluster=told[2] or card.cluster))


def find_job(run: Run, card: Ticket) -> str | None:
    """The id of the run's job by its directory, asked of squeue; raises ``NoAnswer`` where it does not answer."""
    cluster = card.cluster if card.cluster != this_cluster() else None
    completed = programs.call(*jobs.squeue(programs.me(), cluster))
    if completed.status != 0:
        raise programs.NoAnswer(programs.said(completed))
    job = jobs.find(jobs.read(completed.stdout.splitlines()), None, ticket.directory_of(run))
    return job.id if job else None


def _preflight(run: Run) -> None:
    """Ask for a sign of life before anything is handed over."""
    try:
        programs.ping()
    except programs.NoProgram as error:
        run.end_as(State.REFUSED, reason="not submitted: there is no Slurm here")
        raise MissingPrecondition(
            f"there is no Slurm on this machine: {error}",
            hint="run hidl on a login node of the site, or load the module that puts sbatch on PATH",
        ) from error
    except programs.NoAnswer as silence:
        run.end_as(State.REFUSED, reason=f"not submitted: {silence}")
        raise SchedulerUnreachable(
            f"Slurm's controller does not answer: {silence}", hint="nothing was submitted; try again later"
        ) from silence


def _look_for_it(run: Run, card: Ticket, why: str) -> None:
    """sbatch had no answer, or none that can be read: a job that was taken nevertheless is known by its directory."""
    for attempt in range(_SEARCHES):
        time.sleep(attempt)
        try:
            number = find_job(run, card)
        except programs.NoAnswer:
            break
        if number is not None:
            ticket.keep(run, replace(card, id=number))
            return
    raise SchedulerUnreachable(
        f"whether Slurm took the job of run {run.id} is not known: {why}",
        hint=f"hidl status {run.id} tells, when Slurm answers again; do not submit it again before",
    )


def _take_back(run: Run, card: Ticket) -> None:
    """The user interrupted the submission: cancel what may have been taken."""
    with suppress(programs.NoAnswer):
        number = find_job(run, card)
        if number is not None:
            ticket.keep(run, replace(card, id=number))
            programs.call("scancel", number)
        run.end_as(State.INTERRUPTED, reason="interrupted while it was submitted")

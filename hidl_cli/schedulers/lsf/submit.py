"""Handing a job script to ``bsub``: once, whatever happens meanwhile."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace

from hidl_cli.errors import HidlError, MissingPrecondition, SchedulerUnreachable, SubmitRefused
from hidl_cli.record.run import Run
from hidl_cli.record.state import State
from hidl_cli.schedulers.lsf import commands, ticket
from hidl_cli.schedulers.lsf.header import options
from hidl_cli.schedulers.lsf.poll import Poller
from hidl_cli.schedulers.lsf.ticket import Ticket

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to (?:default )?queue")
_SEARCHES = 3


def submit(run: Run, poller: Poller) -> None:
    """Submit ``run.script`` from the run's directory.

    LSF reads ``#BSUB`` lines from standard input alone, or, as on Summit, from a script that is named alone. So they
    are given as options too, which every LSF takes. The job's description carries the run's id: where hidl does not get
    to hear the job's number, it finds the job by that, and never submits it twice.

    Raises ``MissingPrecondition`` where there is no LSF, ``SchedulerUnreachable`` where it does not answer, and
    ``SubmitRefused``, in bsub's words, where the job is not admitted.
    """
    words = options(run.script.read_text(encoding="utf-8"))
    card = Ticket(None, _cluster(run), time.time())
    ticket.keep(run, card)
    directory = str(run.directory.resolve())
    where = [] if "%" in directory else ["-cwd", directory]  # LSF would expand a %
    command = ["bsub", *words, *where, "-Jd", run.id, "./job.sh"]
    try:
        answer = commands.call(*command, timeout=commands.SUBMIT_SECONDS, cwd=run.directory)
    except SchedulerUnreachable as silence:
        if "threshold" in silence.message.lower():  # bsub would try until others of the user's jobs have started
            raise _refused(run, silence.message, hint="wait until others of your jobs have begun") from silence
        _look_for_it(run, poller, card, silence.message)
        return
    except KeyboardInterrupt:  # while bsub was at it
        _take_back(run, poller)
        raise
    told = _SUBMITTED.search(f"{answer.stdout}\n{answer.stderr}")  # a site's esub may print more, before or after
    if told is None:
        raise _not_taken(run, commands.said(answer))
    ticket.keep(run, replace(card, id=told[1]))


def _cluster(run: Run) -> str | None:
    """Ask for a sign of life before anything is handed over."""
    try:
        return commands.cluster()
    except MissingPrecondition:
        run.end_as(State.REFUSED, reason="not submitted: there is no LSF here")
        raise
    except SchedulerUnreachable as silence:
        run.end_as(State.REFUSED, reason=f"not submitted: {silence.message}")
        raise


def _not_taken(run: Run, words: str) -> HidlError:
    if not commands.is_down(words):
        return _refused(run, words, hint="see `bqueues -l` for the limits of the queues")
    run.end_as(State.REFUSED, reason=f"not submitted: {words}")
    return commands.unreachable(words)


def _refused(run: Run, words: str, *, hint: str) -> SubmitRefused:
    run.end_as(State.REFUSED, reason=words)
    return SubmitRefused(f"LSF does not take the job: {words}", hint=hint)


def _look_for_it(run: Run, poller: Poller, card: Ticket, why: str) -> None:
    """bsub had no answer: a job that was taken nevertheless carries the run's id."""
    for attempt in range(_SEARCHES):
        time.sleep(attempt)
        try:
            job = poller.find(run, max_age=0)
        except HidlError:
            break
        if job is not None:
            ticket.keep(run, replace(card, id=job.id))
            return
    raise SchedulerUnreachable(
        f"whether LSF took the job of run {run.id} is not known: {why}",
        hint=f"hidl status {run.id} tells, when LSF answers again; do not submit it again before",
    )


def _take_back(run: Run, poller: Poller) -> None:
    """The user interrupted the submission: end what may have been taken."""
    with suppress(HidlError):
        job = poller.find(run, max_age=0)
        if job is not None:
            commands.kill(job.id)
        run.end_as(State.INTERRUPTED, reason="interrupted while it was submitted")

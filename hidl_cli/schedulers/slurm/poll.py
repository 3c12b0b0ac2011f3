"""The poller: how all runs fare, at the cost of one ``squeue`` at most; of none where the jobs' own word is enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from hidl_cli import paths
from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.board import Board, Snapshot
from hidl_cli.schedulers.slurm import jobs, programs, ticket
from hidl_cli.schedulers.slurm.accounting import Accounting
from hidl_cli.schedulers.slurm.cluster import this_cluster
from hidl_cli.schedulers.slurm.fate import (
    Fate,
    Verb,
    as_before,
    fate,
    is_settled,
    said_by_the_job,
    unanswered,
    without_job,
)
from hidl_cli.schedulers.slurm.jobs import Job
from hidl_cli.schedulers.slurm.ticket import Ticket

#: Between two questions, in seconds. The longer a process has been following, the rarer it asks.
FIRST_INTERVAL = 0.5
LAST_INTERVAL = 30.0
#: What Slurm calls a job that hidl had cancelled: its script may have been quick to leave.
_BY_HIDL = (State.CANCELLED, State.FAILED)


@dataclass(frozen=True)
class _Open:
    """A run whose end is not known yet: its ticket, and what its job wrote."""

    run: Run
    ticket: Ticket
    said: Status


class Poller:
    """Asks for one process; the answers are shared by all."""

    def __init__(self) -> None:
        self._boards: dict[str | None, Board] = {}
        self._answers: dict[str | None, _Answer] = {}
        self._began: float | None = None

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        said = [said_by_the_job(run) for run in runs]
        unsettled = [
            _Open(run, ticket.ticket_of(run), status)
            for run, status in zip(runs, said, strict=True)
            if not is_settled(run, status)
        ]
        known: dict[str, Status] = {}
        for cluster in {each.ticket.cluster for each in unsettled}:
            here = [each for each in unsettled if each.ticket.cluster == cluster]
            for each, status in zip(here, self._ask(cluster, here), strict=True):
                known[str(each.run.directory)] = status
        return [known.get(str(run.directory), status) for run, status in zip(runs, said, strict=True)]

    def _ask(self, cluster: str | None, here: list[_Open]) -> list[Status]:
        board, elsewhere = self._board(cluster)
        ended = any(each.said.state.is_final for each in here)  # Slurm knows why by now, or will in a moment
        snapshot = board.look(min(self._interval(), 1.0) if ended else self._interval())
        answer = self._answers.get(cluster)
        if answer is None or answer.snapshot.asked != snapshot.asked:
            answer = self._answers[cluster] = _Answer(board, snapshot, elsewhere)
        answer.snapshot = snapshot  # others may have learnt more beside the same answer
        fates = answer.fates(here)
        return [_carry_out(each, decided, elsewhere) for each, decided in zip(here, fates, strict=True)]

    def _board(self, cluster: str | None) -> tuple[Board, str | None]:
        """The cluster's board, and its name where Slurm's programs must be told that it is another."""
        here = this_cluster()
        elsewhere = cluster if cluster is not None and here is not None and cluster != here else None
        name = cluster or here or "unknown"
        if cluster not in self._boards:
            self._boards[cluster] = Board(paths.user_state() / "slurm" / f"{name}.json", _Question(elsewhere))
        return self._boards[cluster], elsewhere

    def _interval(self) -> float:
        if self._began is None:
            self._began = time.monotonic()
        return min(LAST_INTERVAL, max(FIRST_INTERVAL, (time.monotonic() - self._began) / 20))


class _Question:
    """The question for all of a user's jobs; ``cluster`` is None for the one that squeue speaks to by itself."""

    def __init__(self, cluster: str | None) -> None:
        self._command = jobs.squeue(programs.me(), cluster)
        self._answered = cluster is not None  # scontrol knows nothing of another's controller

    def __call__(self) -> list[str]:
        """The lines of squeue's answer; ``SchedulerUnreachable`` where there is none."""
        try:
            if not self._answered:
                programs.ping()  # where nobody listens it tells at once, for which squeue needs ten seconds
            self._answered = False
            completed = programs.call(*self._command)
        except programs.NoAnswer as silence:
            raise SchedulerUnreachable(str(silence)) from silence
        if completed.status != 0:
            raise SchedulerUnreachable(programs.said(completed))
        self._answered = True
        return completed.stdout.splitlines()


class _Answer:
    """One answer of squeue, and what else must be asked because of it: each thing once, for all runs together."""

    def __init__(self, board: Board, snapshot: Snapshot, elsewhere: str | None) -> None:
        self.snapshot = snapshot
        self._board = board
        self._accounting = Accounting(board, snapshot, elsewhere)
        self._told: dict[str, Job | None] = {}
        self._partition = cache(programs.partition)
        self._jobs = jobs.read(snapshot.lines)

    def fates(self, here: list[_Open]) -> list[Fate]:
        """What becomes of these runs."""
        if self.snapshot.error is not None:
            words = f"Slurm does not answer{_since(self.snapshot.answered)}: {self.snapshot.error}"
            return [unanswered(each.said, words) for each in here]
        self._look_into_the_accounting([each for each in here if self._is_gone(each)])
        return [self._fate(each) for each in here]

    def _fate(self, each: _Open) -> Fate:
        if self.snapshot.asked <= each.ticket.submitted:
            return as_before(each.said, None)
        job = self._job(each) or self._told.get(each.run.id)
        if job is not None:
            if each.ticket.id is None:
                ticket.keep(each.run, replace(each.ticket, id=job.id))
            return fate(each.said, job, self._partition, asked=self.snapshot.asked)
        if each.ticket.id is None and time.time() - each.ticket.submitted < ticket.SUBMISSION_SECONDS:
            return as_before(each.said, "being submitted, or Slurm's answer is not known")
        name = f"job {each.ticket.id}" if each.ticket.id else "no job of this run: was hidl ended while submitting it?"
        return without_job(each.said, self.snapshot.age_of(each.run.id), f"Slurm does not know {name}")

    def _job(self, each: _Open) -> Job | None:
        return jobs.find(self._jobs, each.ticket.id, ticket.directory_of(each.run))

    def _is_gone(self, each: _Open) -> bool:
        return self._job(each) is None and self.snapshot.asked > each.ticket.submitted

    def _look_into_the_accounting(self, gone: list[_Open]) -> None:
        """Ask for those that squeue does not know (any more); who is not to be found there either is missing.

        Only an end is believed: a job that slurmctld lost stays PENDING or RUNNING in the accounting for ever.
        """
        wanted = {
            each.run.id: (each.ticket.id, ticket.directory_of(each.run))
            for each in gone
            if each.run.id not in self._told
        }
        if not wanted:
            return
        found = self._accounting.find(wanted, since=min(each.ticket.submitted for each in gone) - 60)
        ended = {name: job for name, job in found.items() if job.state.is_final}
        self._told |= {name: ended.get(name) for name in wanted}
        self._board.note(begun=[name for name in wanted if name not in ended], over=ended)


def _carry_out(each: _Open, decided: Fate, elsewhere: str | None) -> Status:
    """Write down an end, and cancel what would wait for ever."""
    if decided.verb is Verb.SHOW:
        return decided.status
    if decided.verb is Verb.REFUSE and each.ticket.id is not None:
        where = [] if elsewhere is None else [f"--clusters={elsewhere}"]
        try:
            programs.call("scancel", *where, each.ticket.id)
        except programs.NoAnswer:
            return replace(decided.status, state=State.PENDING)  # another time
    said = said_by_the_job(each.run)  # once more, after Slurm's word: it may have come in between
    if is_settled(each.run, said):
        return said
    try:
        each.run.end_as(_wanted(each.run, decided.status.state), reason=decided.status.reason)
    except OSError as error:
        told = f"{decided.status.reason or decided.status.state.value}; status.json cannot be written: {error.strerror}"
        return replace(decided.status, reason=told)
    return each.run.status()


def _wanted(run: Run, state: State) -> State:
    """What a cancelled run is to be called: why hidl had it cancelled, if it was hidl."""
    with suppress(OSError, ValueError):
        return State((run.directory / "reason").read_text(encoding="utf-8").strip()) if state in _BY_HIDL else state
    return state


def _since(answered: float) -> str:
    return "" if not answered else f" since {time.strftime('%H:%M:%S', time.localtime(answered))}"

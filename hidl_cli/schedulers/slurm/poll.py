"""The poller: how all runs fare, at the cost of one ``squeue`` at most; of none where the jobs' own word is enough."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from hidl_cli import paths
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.slurm import programs, ticket
from hidl_cli.schedulers.slurm.accounting import Accounting
from hidl_cli.schedulers.slurm.cluster import this_cluster
from hidl_cli.schedulers.slurm.fate import Fate, Verb, as_before, fate, is_settled, said_by_the_job, without_job
from hidl_cli.schedulers.slurm.jobs import Job
from hidl_cli.schedulers.slurm.snapshot import Board, Snapshot
from hidl_cli.schedulers.slurm.ticket import Ticket

#: Between two questions, in seconds. The longer a process has been following, the rarer it asks.
FIRST_INTERVAL = 0.5
LAST_INTERVAL = 30.0
#: How long a submission may take before a run without a job is taken for one that was never submitted.
SUBMISSION_SECONDS = programs.SUBMIT_SECONDS + 30.0


@dataclass(frozen=True)
class _Open:
    """A run whose end is not known yet: its ticket, and what its job wrote."""

    run: Run
    ticket: Ticket
    said: Status

    @property
    def mark(self) -> str:
        """What it is called among the missing ones."""
        return self.ticket.id or self.run.id


class Poller:
    """Asks for one process; the answers are shared by all."""

    def __init__(self) -> None:
        self._boards: dict[str | None, Board] = {}
        self._began: float | None = None

    def poll(self, runs: Sequence[Run], *, max_age: float | None = None) -> list[Status]:
        """See ``Scheduler.poll``; ``max_age``: how old Slurm's answer may be, in seconds (None: by the back-off)."""
        said = [said_by_the_job(run) for run in runs]
        unsettled = [
            _Open(run, ticket.ticket_of(run), status)
            for run, status in zip(runs, said, strict=True)
            if not is_settled(run, status)
        ]
        known: dict[str, Status] = {}
        for cluster in {each.ticket.cluster for each in unsettled}:
            here = [each for each in unsettled if each.ticket.cluster == cluster]
            for each, status in zip(here, self._ask(cluster, here, max_age), strict=True):
                known[str(each.run.directory)] = status
        return [known.get(str(run.directory), status) for run, status in zip(runs, said, strict=True)]

    def _ask(self, cluster: str | None, here: list[_Open], max_age: float | None) -> list[Status]:
        board, elsewhere = self._board(cluster)
        ended = any(each.said.state.is_final for each in here)  # Slurm knows why by now, or will in a moment
        snapshot = board.look(min(self._interval(), 1.0 if ended else LAST_INTERVAL) if max_age is None else max_age)
        questions = _Questions(board, snapshot, elsewhere, here)
        return [_carry_out(each, questions.fate(each), elsewhere) for each in here]

    def _board(self, cluster: str | None) -> tuple[Board, str | None]:
        """The cluster's board, and its name where Slurm's programs must be told that it is another."""
        here = this_cluster()
        elsewhere = cluster if cluster is not None and here is not None and cluster != here else None
        name = cluster or here or "unknown"
        if cluster not in self._boards:
            self._boards[cluster] = Board(paths.user_state() / "slurm", name, elsewhere)
        return self._boards[cluster], elsewhere

    def _interval(self) -> float:
        if self._began is None:
            self._began = time.monotonic()
        return min(LAST_INTERVAL, max(FIRST_INTERVAL, (time.monotonic() - self._began) / 20))


class _Questions:
    """One answer of squeue, and what else must be asked because of it: each thing once for all runs."""

    def __init__(self, board: Board, snapshot: Snapshot, elsewhere: str | None, here: list[_Open]) -> None:
        self._board = board
        self._snapshot = snapshot
        self._here = here
        self._elsewhere = elsewhere
        self._accounting = Accounting(board, snapshot, elsewhere)
        self._partition = cache(self._look_up_partition)

    def fate(self, each: _Open) -> Fate:
        """What becomes of this run."""
        snapshot = self._snapshot
        if snapshot.error is not None:
            return as_before(each.said, f"Slurm does not answer{_since(snapshot.answered)}: {snapshot.error}")
        if snapshot.asked <= each.ticket.submitted:
            return as_before(each.said, None)
        job = self._job(each) or self._accounted.get(each.mark)
        if job is not None:
            if each.ticket.id is None:
                ticket.keep(each.run, replace(each.ticket, id=job.id))
            return fate(each.said, job, self._partition)
        if each.ticket.id is None and time.time() - each.ticket.submitted < SUBMISSION_SECONDS:
            return as_before(each.said, "being submitted, or Slurm's answer is not known")
        since = snapshot.missing.get(each.mark, time.time())
        name = f"job {each.ticket.id}" if each.ticket.id else "no job of this run: was hidl ended while submitting it?"
        return without_job(each.said, time.time() - since, f"Slurm does not know {name}")

    def _job(self, each: _Open) -> Job | None:
        return self._snapshot.job(each.ticket.id, ticket.directory_of(each.run))

    @cached_property
    def _accounted(self) -> Mapping[str, Job]:
        """What the accounting knows of the runs that squeue does not know (any more); those are noted as missing."""
        gone = [each for each in self._here if self._job(each) is None]
        since = min(each.ticket.submitted for each in gone) - 60
        wanted = {each.mark: (each.ticket.id, ticket.directory_of(each.run)) for each in gone}
        found = self._accounting.find(wanted, since)
        self._board.note(missing=[mark for mark in wanted if mark not in found], found=found)
        return found

    def _look_up_partition(self, name: str) -> Mapping[str, str]:
        return programs.partition(name)


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
    try:
        each.run.end_as(decided.status.state, reason=decided.status.reason)
    except OSError as error:
        told = f"{decided.status.reason or decided.status.state.value}; status.json cannot be written: {error.strerror}"
        return replace(decided.status, reason=told)
    return each.run.status()


def _since(answered: float) -> str:
    return "" if not answered else f" since {time.strftime('%H:%M:%S', time.localtime(answered))}"

"""The poller: how all runs fare, at the cost of one ``bjobs`` at most, or of none where the jobs' own word does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from hidl_cli import paths
from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run
from hidl_cli.record.state import State, Status
from hidl_cli.schedulers.board import Board, Snapshot
from hidl_cli.schedulers.lsf import bjobs, commands, ticket
from hidl_cli.schedulers.lsf.bjobs import Record
from hidl_cli.schedulers.lsf.judgement import WAITING, Judgement, is_settled, judge
from hidl_cli.schedulers.lsf.ticket import Ticket

#: Between two questions, in seconds. The longer a process has been following, the rarer it asks.
FIRST_INTERVAL = 1.0
LAST_INTERVAL = 30.0
#: How long a submission may take before a run without a job is taken for one that was never submitted.
SUBMISSION_SECONDS = commands.SUBMIT_SECONDS + 30.0


@dataclass(frozen=True)
class _Open:
    """A run whose end is not known yet: its ticket, and what its job wrote."""

    run: Run
    ticket: Ticket
    said: Status


class Poller:
    """Asks for one process; the answers are shared by all."""

    def __init__(self) -> None:
        self._began: float | None = None

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        statuses = [_said_by_the_job(run) for run in runs]
        unsettled = [number for number, run in enumerate(runs) if not is_over(run, statuses[number])]
        if not unsettled:
            return statuses
        open_runs = [_Open(runs[number], ticket.ticket_of(runs[number]), statuses[number]) for number in unsettled]
        snapshot, records = self._look(open_runs)
        for number, each in zip(unsettled, open_runs, strict=True):
            statuses[number] = self._fate(each, snapshot, records)
        return statuses

    def find(self, run: Run, *, max_age: float) -> Record | None:
        """What LSF says of the run's job, None where it does not know it.

        Raises ``SchedulerUnreachable``, and ``HidlError`` where the job is with another cluster's LSF.
        """
        each = _Open(run, ticket.ticket_of(run), Status(State.PENDING))
        if self._is_elsewhere(each):
            raise HidlError(self._where(each), hint="log in there, and try again")
        snapshot = self._board.look(max_age)
        if snapshot.error is not None:
            raise commands.unreachable(snapshot.error)
        return _job_of(each, bjobs.parse(snapshot.lines))

    @cached_property
    def _here(self) -> str | None:
        with suppress(HidlError):
            return commands.cluster()
        return None

    @cached_property
    def _board(self) -> Board:
        return Board(paths.user_state() / "lsf" / f"{self._here or 'unknown'}.json", bjobs.ask)

    def _look(self, open_runs: Sequence[_Open]) -> tuple[Snapshot, list[Record]]:
        """LSF's answer; a new one where an old one says of a job that has begun that it waits."""
        ended = any(each.said.state.is_final for each in open_runs)  # LSF knows why by now, or will in a moment
        snapshot = self._board.look(FIRST_INTERVAL if ended else self._interval())
        records = bjobs.parse(snapshot.lines)
        for each in open_runs:
            record = _job_of(each, records)
            if record is not None and record.stat in WAITING and each.said.state is not State.PENDING:
                snapshot = self._board.look(FIRST_INTERVAL)
                return snapshot, bjobs.parse(snapshot.lines)
        return snapshot, records

    def _interval(self) -> float:
        if self._began is None:
            self._began = time.monotonic()
        return min(LAST_INTERVAL, max(FIRST_INTERVAL, (time.monotonic() - self._began) / 20))

    def _fate(self, each: _Open, snapshot: Snapshot, records: Sequence[Record]) -> Status:
        if self._is_elsewhere(each):
            return _as_before(each.said, self._where(each))
        if snapshot.error is not None:
            return _as_before(each.said, snapshot.error)
        if snapshot.asked <= each.ticket.submitted:
            return _as_before(each.said, None)
        record = _job_of(each, records)
        if record is None and each.ticket.id is None and time.time() - each.ticket.submitted < SUBMISSION_SECONDS:
            return _as_before(each.said, "being submitted, or LSF's answer is not known")
        if record is not None and each.ticket.id is None:
            ticket.keep(each.run, replace(each.ticket, id=record.id))
        return self._carry_out(each, record, self._judge(each, record, snapshot))

    def _is_elsewhere(self, each: _Open) -> bool:
        return each.ticket.cluster is not None and self._here is not None and each.ticket.cluster != self._here

    def _where(self, each: _Open) -> str:
        return f"the job is on cluster {each.ticket.cluster}, and this is {self._here}"

    def _judge(self, each: _Open, record: Record | None, snapshot: Snapshot) -> Judgement:
        """The job's own word is read once more, after LSF's: it may have come in between."""
        said = _said_by_the_job(each.run)
        pending = time.time() - each.ticket.submitted
        unclear = snapshot.age_of(each.run.id)
        judgement = judge(said, record, pending=pending, unclear=unclear)
        if judgement.state is State.LOST and record is None and each.ticket.id is not None:
            with suppress(HidlError):
                judgement = judge(said, bjobs.history(each.ticket.id), pending=pending, unclear=unclear)
        if judgement.unclear:
            self._board.note(begun=[each.run.id])
        elif each.run.id in snapshot.since:
            self._board.note(over=[each.run.id])
        return judgement

    def _carry_out(self, each: _Open, record: Record | None, judgement: Judgement) -> Status:
        """Write down an end, and take back what would wait for ever."""
        said = _said_by_the_job(each.run)
        if is_over(each.run, said):
            return said
        if not judgement.state.is_final:
            return replace(said, state=judgement.state, reason=judgement.reason)
        if judgement.state is State.REFUSED and record is not None:
            try:
                commands.kill(record.id)
            except HidlError:
                return replace(said, state=State.PENDING, reason=judgement.reason)  # another time
        state = _asked_for(each.run) if judgement.state is State.CANCELLED else None
        try:
            each.run.end_as(state or judgement.state, reason=judgement.reason)
        except OSError as error:
            told = f"{judgement.reason}; status.json cannot be written: {error.strerror}"
            return replace(said, state=judgement.state, reason=told)
        return each.run.status()


def is_over(run: Run, said: Status) -> bool:
    """Is this the end, whatever LSF says? It is too where hidl itself had the run ended."""
    return is_settled(said) or (said.state.is_final and (run.directory / "reason").exists())


def _said_by_the_job(run: Run) -> Status:
    """What the job wrote; as of a job that wrote nothing where it cannot be read (a full disk, a node that fell)."""
    try:
        return run.status()
    except HidlError:
        return Status(State.PENDING)


def _as_before(said: Status, reason: str | None) -> Status:
    """Nothing new is known: the run goes on as far as anybody can tell."""
    return replace(said, state=State.RUNNING if said.state.is_final else said.state, reason=reason)


def _job_of(each: _Open, records: Sequence[Record]) -> Record | None:
    """The job of that number, or the last one that carries the run's name: LSF counts anew when it is set up anew."""
    own = [record for record in records if record.description == each.run.id]
    if each.ticket.id is None:
        return max(own, key=lambda record: int(record.id.split("[")[0]), default=None)
    found = next((record for record in records if record.id == each.ticket.id), None)
    return found if found is None or found.description in ("", each.run.id) else None


def _asked_for(run: Run) -> State | None:
    """The state that hidl had the run ended for, if it was hidl."""
    with suppress(OSError, ValueError):
        return State((run.directory / "reason").read_text(encoding="utf-8").strip())
    return None

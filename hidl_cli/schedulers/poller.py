"""The poller: the status of all runs at the cost of one query at most; of none where the jobs' own word is enough."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hidl_cli import paths
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError, SchedulerUnreachable
from hidl_cli.record.run import Run, State, Status
from hidl_cli.schedulers import backend as ticket
from hidl_cli.schedulers import decision
from hidl_cli.schedulers.backend import QUERY_SECONDS, SUBMIT_SECONDS, Backend, NoAnswer, Ticket
from hidl_cli.schedulers.decision import LAG_SECONDS, Clock, Decision, Job, Never, Verb

SCHEMA = "hidl.query-cache/1"


@dataclass(frozen=True)
class Snapshot:
    """``lines`` are those of the scheduler's last answer; times are in seconds since the epoch, 0: never.

    ``asked``: when the scheduler was last asked; ``answered``: when it last answered; ``error``: why it has not
    answered since. ``since``: since when a condition holds whose age a later poll, maybe of another process, needs: a
    job that is not found, a service that does not answer.
    """

    asked: float = 0.0
    answered: float = 0.0
    error: str | None = None
    lines: tuple[str, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)

    def age_of(self, name: str) -> float:
        """Seconds for which a noted condition has held; 0 if it does not."""
        return time.time() - self.since[name] if name in self.since else 0.0


class QueryCache:
    """The snapshot in ``file``; ``ask`` returns the answer's lines, or raises ``SchedulerUnreachable``."""

    def __init__(self, file: Path, ask: Callable[[], Sequence[str]]) -> None:
        self._file = file
        self._ask = ask
        self._own = Snapshot()

    def read(self, max_age: float) -> Snapshot:
        """Return the snapshot, no older than ``max_age`` seconds, unless another process is asking right now."""
        snapshot = self._load()
        if _is_fresh(snapshot, max_age):
            return snapshot
        with self._lock() as got:
            if not got:
                return snapshot
            snapshot = self._load()  # another process may have asked while this one came here
            return snapshot if _is_fresh(snapshot, max_age) else self._store(self._refreshed(snapshot))

    def note(self, *, begun: Iterable[str] = (), over: Iterable[str] = ()) -> None:
        """Record for all processes the conditions that hold from now on, and those that no longer do.

        Skipped while another process is asking: the next poll notes the same.
        """
        with self._lock() as got:
            if not got:
                return
            last = self._load()
            ended = set(over)
            since = {name: begin for name, begin in last.since.items() if name not in ended}
            for name in begun:
                since.setdefault(name, time.time())
            if since != last.since:
                self._store(replace(last, since=since))

    def _refreshed(self, last: Snapshot) -> Snapshot:
        now = time.time()
        try:
            lines = tuple(self._ask())
            return replace(last, asked=now, answered=time.time(), error=None, lines=lines)
        except SchedulerUnreachable as error:
            return replace(last, asked=now, error=error.message)

    def _load(self) -> Snapshot:
        try:
            document = read_json(self._file)
            if document.pop("schema") == SCHEMA:
                read = Snapshot(**{**document, "lines": tuple(document["lines"])})
                if read.asked >= self._own.asked:
                    self._own = read
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # missing or unreadable: this process uses its own
        return self._own

    def _store(self, snapshot: Snapshot) -> Snapshot:
        self._own = snapshot
        with suppress(OSError):  # disk full: each process uses its own
            write_json(self._file, {"schema": SCHEMA, **asdict(snapshot)})
        return snapshot

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Yield whether this process has the lock; on a file system without locks, each process asks for itself."""
        descriptor = None
        got = True
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                got = False
        try:
            yield got
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _is_fresh(snapshot: Snapshot, max_age: float) -> bool:
    """Judge by the time of the answer: a scheduler that answers slowly is not asked again at once.

    A time in the future comes from a machine whose clock is wrong.
    """
    return -1 < time.time() - max(snapshot.asked, snapshot.answered) < max_age


#: Longest time between two queries, in seconds: the longer a process has been following, the less often it asks.
LAST_INTERVAL = 30.0
#: How long a submission may take before a run without a job counts as never submitted.
SUBMISSION_SECONDS = SUBMIT_SECONDS + 30.0
#: How long records that did not answer are left alone.
SILENCE_SECONDS = 300.0
_SILENT = "records do not answer"


@dataclass(frozen=True)
class _Open:
    """A run whose end is not known yet: its ticket, and what its job wrote."""

    run: Run
    ticket: Ticket
    said: Status


class Poller:
    """Asks for one process; all processes share the answers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._caches: dict[str | None, QueryCache] = {}
        self._answers: dict[str | None, _Answer] = {}
        self._began: float | None = None

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        """See ``Scheduler.poll``."""
        said = [decision.read_status(run) for run in runs]
        unsettled = [
            _Open(run, _ticket_of(run, status), status)
            for run, status in zip(runs, said, strict=True)
            if not status.is_settled
        ]
        known: dict[str, Status] = {}
        for cluster in {each.ticket.cluster for each in unsettled}:
            here = [each for each in unsettled if each.ticket.cluster == cluster]
            for each, status in zip(here, self._poll(cluster, here), strict=True):
                known[str(each.run.directory)] = status
        return [known.get(str(run.directory), status) for run, status in zip(runs, said, strict=True)]

    def find(self, run: Run, *, max_age: float) -> Job | None:
        """Return what the scheduler says of the run's job, None if it does not know it.

        Raises ``NoAnswer``, and ``HidlError`` if the job is on a cluster that cannot be asked from here.
        """
        card = _ticket_of(run, decision.read_status(run))
        if not self._is_reached(card.cluster):
            raise HidlError(self._where(card.cluster), hint="log in there, and try again")
        snapshot = self._fresh(self._cache(card.cluster), max_age)
        if snapshot.error is not None:
            raise NoAnswer(snapshot.error)
        job = self._backend.find(self._backend.parse(snapshot.lines), run, card)
        return job or _look_up(self._backend, run, card, self.elsewhere(card.cluster))

    def elsewhere(self, cluster: str | None) -> str | None:
        """Return ``cluster`` if it must be passed to the programs, as it is not their own."""
        here = self._backend.this_cluster()
        return cluster if cluster is not None and here is not None and cluster != here else None

    @staticmethod
    def _fresh(cache: QueryCache, max_age: float) -> Snapshot:
        """Return an answer no older than that, though another process may be asking; ``NoAnswer`` if none comes."""
        begin = time.time() - max_age
        deadline = time.monotonic() + QUERY_SECONDS
        while True:
            snapshot = cache.read(max_age)
            if max(snapshot.asked, snapshot.answered) >= begin:
                return snapshot
            if time.monotonic() > deadline:
                raise NoAnswer("another process is waiting for its answer")
            time.sleep(0.05)

    def _poll(self, cluster: str | None, here: list[_Open]) -> list[Status]:
        if not self._is_reached(cluster):
            return [decision.keep(each.said, self._where(cluster)).status for each in here]
        answer = self._answer(cluster, self._max_age(here))
        if any(answer.is_outdated(each) for each in here):
            answer = self._answer(cluster, self._backend.first_interval)
        decisions = answer.decide(here)
        return [self._carry_out(each, decided) for each, decided in zip(here, decisions, strict=True)]

    def _answer(self, cluster: str | None, max_age: float) -> _Answer:
        cache = self._cache(cluster)
        snapshot = cache.read(max_age)
        answer = self._answers.get(cluster)
        if answer is None or answer.snapshot.asked != snapshot.asked:
            answer = self._answers[cluster] = _Answer(self._backend, cache, snapshot, self.elsewhere(cluster))
        answer.snapshot = snapshot  # other processes may have noted more beside the same answer
        return answer

    def _is_reached(self, cluster: str | None) -> bool:
        return self.elsewhere(cluster) is None or self._backend.reaches(str(cluster))

    def _where(self, cluster: str | None) -> str:
        return f"the job is on cluster {cluster}, and this is {self._backend.this_cluster()}"

    def _cache(self, cluster: str | None) -> QueryCache:
        if cluster not in self._caches:
            name = cluster or self._backend.this_cluster() or "unknown"
            file = paths.user_state() / self._backend.traits.name / f"{name}.json"
            self._caches[cluster] = QueryCache(file, lambda: self._query(self.elsewhere(cluster)))
        return self._caches[cluster]

    def _query(self, cluster: str | None) -> Sequence[str]:
        try:
            return self._backend.query(cluster)
        except NoAnswer as silence:
            raise SchedulerUnreachable(str(silence), hint=self._backend.hint()) from silence

    def _max_age(self, here: Iterable[_Open]) -> float:
        """How old an answer may be, in seconds: the scheduler knows soon why a job ended."""
        if self._began is None:
            self._began = time.monotonic()
        first = self._backend.first_interval
        interval = min(LAST_INTERVAL, max(first, (time.monotonic() - self._began) / 20))
        ended = [time.time() - each.said.ended for each in here if each.said.ended is not None]
        return min([interval, *(max(1.0, first, since / 20) for since in ended)])

    def _carry_out(self, each: _Open, decided: Decision) -> Status:
        """Write down an end, and cancel what would wait for ever."""
        if decided.verb is Verb.SHOW:
            return decided.status
        if decided.verb is Verb.REFUSE and not self._is_taken_back(each):
            return replace(decided.status, state=State.PENDING)  # another time
        said = decision.read_status(each.run)  # again, after the scheduler's word: it may have come in between
        if said.is_settled:
            return said
        if said.started != each.said.started:  # the decision is about what it was before
            return decision.keep(said, None).status
        return each.run.end_as(_asked_for(each.run, decided.status.state), reason=decided.status.reason)

    def _is_taken_back(self, each: _Open) -> bool:
        """Cancel a job that waits; whether nothing of it is left in the queue."""
        try:
            self._backend.ping()
            job = self.find(each.run, max_age=0)
            if job is None or job.state is not State.PENDING:
                return job is None or job.state.is_final
            self._backend.kill(job.id, self.elsewhere(each.ticket.cluster))
        except (NoAnswer, HidlError):
            return False
        return True


class _Answer:
    """One answer of the scheduler, and what else must be asked because of it: each thing once, for all runs."""

    def __init__(self, backend: Backend, cache: QueryCache, snapshot: Snapshot, elsewhere: str | None) -> None:
        self.snapshot = snapshot
        self._backend = backend
        self._cache = cache
        self._elsewhere = elsewhere
        self._recorded: dict[str, Job | None] = {}
        self._hopeless: set[str] = set()
        self._jobs = backend.parse(snapshot.lines)

    def is_outdated(self, each: _Open) -> bool:
        """Whether it calls a job waiting that has begun by its own word."""
        job = self._job(each)
        return job is not None and job.state is State.PENDING and each.said.state is not State.PENDING

    def decide(self, here: Sequence[_Open]) -> list[Decision]:
        """Decide on each of the runs."""
        title, clock = self._backend.traits.title, Clock.of(self._backend.grace_seconds)
        if self.snapshot.error is not None:
            words = f"{title} does not answer{_since(self.snapshot.answered)}: {self.snapshot.error}"
            clock = replace(clock, asked=self.snapshot.answered)
            return [decision.without_answer(each.said, title, words, self._job(each), clock) for each in here]
        self._read_records([each for each in here if self._is_gone(each) or self._is_ending_slowly(each, clock)])
        decisions = [self._decide(each) for each in here]
        begun = {each.run.id for each, decided in zip(here, decisions, strict=True) if decided.unclear} | self._hopeless
        over = {name for each in here for name in (each.run.id, _hopeless(each))} - begun
        if begun - self.snapshot.since.keys() or over & self.snapshot.since.keys():
            self._cache.note(begun=begun, over=over)
        return decisions

    def _decide(self, each: _Open) -> Decision:
        title = self._backend.traits.title
        if self.snapshot.asked <= each.ticket.submitted:
            return decision.keep(each.said, None)
        since = self.snapshot.since.get(each.run.id)
        unclear_for = time.time() - since if since is not None and self.snapshot.asked > since else 0.0
        clock = Clock.of(self._backend.grace_seconds, asked=self.snapshot.asked, unclear_for=unclear_for)
        job = self._job(each)
        if job is None or self._is_ending_slowly(each, clock):
            job = self._record_of_end(each, job)
        if job is not None:
            if ticket.read_ticket(each.run).id != job.id:
                ticket.write_ticket(each.run, self._backend.traits.name, replace(each.ticket, id=job.id))
            waiting = job.state is State.PENDING
            never = self._stood(each, self._backend.never_starts(job)) if waiting else None
            return decision.decide(decision.read_status(each.run), title, job, never, clock)
        if each.ticket.id is None and time.time() - each.ticket.submitted < SUBMISSION_SECONDS:
            return decision.keep(each.said, f"being submitted, or {title}'s answer is not known")
        why = "is its directory a copy?" if each.ticket.foreign else "was hidl killed while submitting it?"
        name = f"job {each.ticket.id}" if each.ticket.id else f"no job of this run: {why}"
        decided = decision.without_job(each.said, f"{title} does not know {name}", clock)
        return self._confirmed(each, decided, clock) if decided.verb is Verb.END else decided

    def _confirmed(self, each: _Open, decided: Decision, clock: Clock) -> Decision:
        """Return ``decided`` only if the scheduler, asked by id, denies the job; else decide by its answer."""
        title = self._backend.traits.title
        try:
            job = _look_up(self._backend, each.run, each.ticket, self._elsewhere)
        except NoAnswer as silence:
            words = f"{title} does not list the job, and gives no answer about it: {silence}"
            return decision.keep(each.said, words, unclear=True)
        return decided if job is None else decision.decide(decision.read_status(each.run), title, job, None, clock)

    def _stood(self, each: _Open, never: Never | None) -> str | None:
        """Return why the job never starts, once that has stood for as long as it must."""
        if never is None:
            return None
        name = _hopeless(each)
        self._hopeless.add(name)
        return never.reason if self.snapshot.age_of(name) >= never.after else None

    def _job(self, each: _Open) -> Job | None:
        return self._backend.find(self._jobs, each.run, each.ticket)

    def _is_gone(self, each: _Open) -> bool:
        return self._job(each) is None and self.snapshot.asked > each.ticket.submitted

    def _is_ending_slowly(self, each: _Open, clock: Clock) -> bool:
        """Whether the job's script is over, and the scheduler has long been cleaning up: its records may say why."""
        job = self._job(each)
        return job is not None and job.ending and clock.is_past_grace(each.said)

    def _record_of_end(self, each: _Open, job: Job | None) -> Job | None:
        """Return the end in the records of a job that is not listed (None), or that is ending: not an earlier one's."""
        recorded = self._recorded.get(each.run.id)
        if recorded is None or job is None:
            return recorded or job  # an end that the records do not know is still to come
        earlier = (recorded.ended or 0.0) < (each.said.ended or 0.0) - LAG_SECONDS
        return job if earlier else recorded

    def _read_records(self, sought: list[_Open]) -> None:
        """Look up jobs in the scheduler's records that the query does not list any more, or whose end takes long.

        Of records, only an end is believed: a job that the server lost may stay PENDING or RUNNING there for ever.
        """
        wanted = {each.run.id: each for each in sought if each.run.id not in self._recorded}
        if not wanted or 0 < self.snapshot.age_of(_SILENT) < SILENCE_SECONDS:
            return
        ids = [each.ticket.id for each in wanted.values()]
        since = min(each.ticket.submitted for each in wanted.values()) - 60
        try:
            found = self._backend.history(ids, since, self._elsewhere)
        except NoAnswer:
            self._cache.note(over=[_SILENT])
            self._cache.note(begun=[_SILENT])
            found = []
        believed = [job for job in found if job.state.is_final or self._backend.asks_by_id]
        self._recorded |= {id: self._backend.find(believed, each.run, each.ticket) for id, each in wanted.items()}


def _look_up(backend: Backend, run: Run, ticket: Ticket, cluster: str | None) -> Job | None:
    """Ask about the run's job by its id, which the records may tell if the submission did not."""
    id = ticket.id
    if id is None:
        with suppress(NoAnswer):
            recorded = backend.find(backend.history([None], ticket.submitted - 60, cluster), run, ticket)
            id = recorded.id if recorded else None
    job = backend.look_up(id, cluster) if id is not None else None
    return backend.find([job], run, ticket) if job is not None else None


def _hopeless(each: _Open) -> str:
    """Return the name of the condition that the run's job would never start."""
    return f"{each.run.id} never starts"


def _ticket_of(run: Run, said: Status) -> Ticket:
    """Return the ticket, with the id that the job itself wrote: it may have been submitted again by hand."""
    known = ticket.read_ticket(run)
    by_hand = said.job and said.job != known.id and not known.foreign and ticket.is_newer(run)
    return replace(known, id=said.job, cancelled=False) if by_hand else known


def _asked_for(run: Run, state: State) -> State:
    """Return the state of a run that hidl cancelled: what hidl wanted. Its script may have been quick, and FAILED."""
    quick = state is State.FAILED and _ticket_of(run, decision.read_status(run)).cancelled
    with suppress(OSError, ValueError):
        if quick or state is State.CANCELLED:
            return State((run.directory / "reason").read_text(encoding="utf-8").strip())
    return state


def _since(answered: float) -> str:
    return "" if not answered else f" since {time.strftime('%H:%M:%S', time.localtime(answered))}"

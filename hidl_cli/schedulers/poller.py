"""Poll all runs using at most one query, or none if their jobs have already recorded a final status."""

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
from hidl_cli.record import Run, State, Status
from hidl_cli.schedulers import decision
from hidl_cli.schedulers.backend import (
    QUERY_SECONDS,
    SUBMIT_SECONDS,
    Backend,
    JobReference,
    NoAnswer,
    is_newer,
    read_reference,
    write_reference,
)
from hidl_cli.schedulers.decision import LAG_SECONDS, Action, Clock, Decision, Job, StartBlocker

SCHEMA = "hidl.query-cache/1"


@dataclass(frozen=True)
class Snapshot:
    """The last response of the scheduler. Times are in seconds since the epoch; 0 means never.

    Attributes:
        asked: Time of the last query.
        answered: Time of the last response.
        error: Reason why the last query failed, or None if it succeeded.
        lines: Lines of the last response.
        since: Start times of conditions, such as a missing job or a service that does not respond. Later polls, even by
            other processes, need to know how long each condition has persisted.
    """

    asked: float = 0.0
    answered: float = 0.0
    error: str | None = None
    lines: tuple[str, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)

    def age_of(self, name: str) -> float:
        """Return how long a condition has persisted, in seconds, or 0 if it has not been recorded."""
        return time.time() - self.since[name] if name in self.since else 0.0


class QueryCache:
    """A snapshot shared by all processes through a file.

    ``query`` returns the lines of a response or raises ``SchedulerUnreachable``.
    """

    def __init__(self, file: Path, query: Callable[[], Sequence[str]]) -> None:
        self._file = file
        self._query = query
        self._own = Snapshot()

    def read(self, max_age: float) -> Snapshot:
        """Return a snapshot no older than ``max_age`` seconds, or an older one while another process runs the query."""
        snapshot = self._load()
        if _is_fresh(snapshot, max_age):
            return snapshot
        with self._lock() as got:
            if not got:
                return snapshot
            snapshot = self._load()  # another process may have refreshed it in the meantime
            return snapshot if _is_fresh(snapshot, max_age) else self._store(self._refreshed(snapshot))

    def note(self, *, begun: Iterable[str] = (), over: Iterable[str] = ()) -> None:
        """Record new conditions for all processes, and remove those that no longer hold.

        Nothing is recorded while another process runs a query; the next poll notes the same conditions.
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
            lines = tuple(self._query())
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
            pass  # if the file is missing or unreadable, this process uses its own snapshot
        return self._own

    def _store(self, snapshot: Snapshot) -> Snapshot:
        self._own = snapshot
        with suppress(OSError):  # if the disk is full, each process uses its own snapshot
            write_json(self._file, {"schema": SCHEMA, **asdict(snapshot)})
        return snapshot

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Try to lock the file, and yield True if that succeeded or if the file system does not support locks."""
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
    """Return whether the last response or query is recent. A time in the future (from a wrong clock) is not."""
    return -1 < time.time() - max(snapshot.asked, snapshot.answered) < max_age


#: Longest time between two queries, in seconds. The interval grows with the time that a process has been polling.
LAST_INTERVAL = 30.0
#: Seconds after which a run without a job counts as never submitted.
SUBMISSION_SECONDS = SUBMIT_SECONDS + 30.0
#: Seconds to wait before the scheduler's records are queried again after they were unavailable.
SILENCE_SECONDS = 300.0
_SILENT = "records do not answer"


@dataclass(frozen=True)
class _OpenRun:
    """A run that is not known to have ended, with its job and the status recorded by the job."""

    run: Run
    job: JobReference
    recorded: Status


class Poller:
    """Polls this process's runs, using responses shared by all processes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._caches: dict[str | None, QueryCache] = {}
        self._responses: dict[str | None, _Response] = {}
        self._began: float | None = None

    def poll(self, runs: Sequence[Run]) -> list[Status]:
        recorded = [decision.read_status(run) for run in runs]
        unsettled = [
            _OpenRun(run, _reference_of(run, status), status)
            for run, status in zip(runs, recorded, strict=True)
            if not status.is_settled
        ]
        known: dict[str, Status] = {}
        for cluster in {each.job.cluster for each in unsettled}:
            here = [each for each in unsettled if each.job.cluster == cluster]
            for each, status in zip(here, self._poll(cluster, here), strict=True):
                known[str(each.run.directory)] = status
        return [known.get(str(run.directory), status) for run, status in zip(runs, recorded, strict=True)]

    def find(self, run: Run, *, max_age: float) -> Job | None:
        """Return the run's job as reported by the scheduler, or None if the job is unknown to the scheduler.

        Raises ``NoAnswer``, and ``HidlError`` if the job is on a cluster that cannot be queried from this host.
        """
        reference = _reference_of(run, decision.read_status(run))
        cluster = reference.cluster
        if not self._is_reachable(cluster):
            raise HidlError(self._where(cluster), hint="log in there and try again")
        snapshot = self._fresh(self._cache(cluster), max_age)
        if snapshot.error is not None:
            raise NoAnswer(snapshot.error)
        reference, job = _current_job(self._backend, self._backend.parse(snapshot.lines), run, reference)
        return job or _look_up(self._backend, run, reference, self.elsewhere(cluster))

    def elsewhere(self, cluster: str | None) -> str | None:
        """Return ``cluster`` if it must be passed to the programs, or None if it is their default cluster."""
        here = self._backend.this_cluster()
        return cluster if cluster is not None and here is not None and cluster != here else None

    @staticmethod
    def _fresh(cache: QueryCache, max_age: float) -> Snapshot:
        """Return a snapshot no older than ``max_age`` seconds, waiting for another process's query if necessary."""
        begin = time.time() - max_age
        deadline = time.monotonic() + QUERY_SECONDS
        while True:
            snapshot = cache.read(max_age)
            if max(snapshot.asked, snapshot.answered) >= begin:
                return snapshot
            if time.monotonic() > deadline:
                raise NoAnswer("another process is still waiting for a response")
            time.sleep(0.05)

    def _poll(self, cluster: str | None, here: list[_OpenRun]) -> list[Status]:
        if not self._is_reachable(cluster):
            return [decision.keep(each.recorded, self._where(cluster)).status for each in here]
        response = self._response(cluster, self._max_age(here))
        if any(response.is_outdated(each) for each in here):
            response = self._response(cluster, self._backend.first_interval)
        here = [response.with_current_job(each) for each in here]
        decisions = response.decide(here)
        return [self._carry_out(each, decided) for each, decided in zip(here, decisions, strict=True)]

    def _response(self, cluster: str | None, max_age: float) -> _Response:
        cache = self._cache(cluster)
        snapshot = cache.read(max_age)
        response = self._responses.get(cluster)
        if response is None or response.snapshot.asked != snapshot.asked:
            response = self._responses[cluster] = _Response(self._backend, cache, snapshot, self.elsewhere(cluster))
        response.snapshot = snapshot  # other processes may have noted more conditions
        return response

    def _is_reachable(self, cluster: str | None) -> bool:
        return self.elsewhere(cluster) is None or self._backend.reaches(str(cluster))

    def _where(self, cluster: str | None) -> str:
        return f"the job is on cluster {cluster}, but this is {self._backend.this_cluster()}"

    def _cache(self, cluster: str | None) -> QueryCache:
        if cluster not in self._caches:
            name = cluster or self._backend.this_cluster() or "unknown"
            file = paths.user_state() / self._backend.traits.name / f"{name}.json"
            self._caches[cluster] = QueryCache(file, lambda: self._query(self.elsewhere(cluster)))
        return self._caches[cluster]

    def _query(self, cluster: str | None) -> Sequence[str]:
        try:
            return self._backend.query(cluster)
        except NoAnswer as error:
            raise SchedulerUnreachable(str(error), hint=self._backend.hint()) from error

    def _max_age(self, here: Iterable[_OpenRun]) -> float:
        """Return the maximum acceptable age of a response, in seconds.

        The limit is lower once a job has recorded that it ended.
        """
        if self._began is None:
            self._began = time.monotonic()
        first = self._backend.first_interval
        interval = min(LAST_INTERVAL, max(first, (time.monotonic() - self._began) / 20))
        ended = [time.time() - each.recorded.ended for each in here if each.recorded.ended is not None]
        return min([interval, *(max(1.0, first, since / 20) for since in ended)])

    def _carry_out(self, each: _OpenRun, decided: Decision) -> Status:
        """Record a run's end. If its job will never start, the job is cancelled first."""
        if decided.action is Action.SHOW:
            return decided.status
        if decided.action is Action.REFUSE and not self._cancel_pending(each):
            return replace(decided.status, state=State.PENDING)  # the next poll tries again
        recorded = decision.read_status(each.run)  # the job may have recorded more during the query
        if recorded.is_settled:
            return recorded
        if recorded.started != each.recorded.started:  # the job was requeued, so the decision is out of date
            return decision.keep(recorded, None).status
        return each.run.end_as(_requested_end(each.run, decided.status.state), reason=decided.status.reason)

    def _cancel_pending(self, each: _OpenRun) -> bool:
        """Cancel a job if it is pending; return whether it has left the queue."""
        try:
            self._backend.ping()
            job = self.find(each.run, max_age=0)
            if job is None or job.state is not State.PENDING:
                return job is None or job.state.is_final
            self._backend.kill(job.id, self.elsewhere(each.job.cluster))
        except (NoAnswer, HidlError):
            return False
        return True


class _Response:
    """A scheduler response and the additional queries that it requires, each of which is made once for all runs."""

    def __init__(self, backend: Backend, cache: QueryCache, snapshot: Snapshot, elsewhere: str | None) -> None:
        self.snapshot = snapshot
        self._backend = backend
        self._cache = cache
        self._elsewhere = elsewhere
        self._recorded: dict[str, Job | None] = {}
        self._hopeless: set[str] = set()
        self._jobs = backend.parse(snapshot.lines)

    def is_outdated(self, each: _OpenRun) -> bool:
        """Return whether the response lists a job as pending although the job has recorded its start."""
        job = self._job(each)
        return job is not None and job.state is State.PENDING and each.recorded.state is not State.PENDING

    def with_current_job(self, each: _OpenRun) -> _OpenRun:
        """Return the run with its next job if the previous job has ended and the next one exists, or else unchanged."""
        reference, _ = _current_job(self._backend, self._jobs, each.run, each.job)
        return each if reference == each.job else replace(each, job=reference)

    def decide(self, here: Sequence[_OpenRun]) -> list[Decision]:
        """Determine the action for each run."""
        title, clock = self._backend.traits.title, Clock.of(self._backend.grace_seconds)
        if self.snapshot.error is not None:
            answered = self.snapshot.answered
            since = f" since {time.strftime('%H:%M:%S', time.localtime(answered))}" if answered else ""
            reason = f"{title} has not responded{since}: {self.snapshot.error}"
            clock = replace(clock, asked=answered)
            return [decision.without_answer(each.recorded, title, reason, self._job(each), clock) for each in here]
        self._read_records([each for each in here if self._is_gone(each) or self._is_ending_slowly(each, clock)])
        decisions = [self._decide(each) for each in here]
        begun = {each.run.id for each, decided in zip(here, decisions, strict=True) if decided.unclear} | self._hopeless
        over = {name for each in here for name in (each.run.id, _hopeless(each))} - begun
        if begun - self.snapshot.since.keys() or over & self.snapshot.since.keys():
            self._cache.note(begun=begun, over=over)
        return decisions

    def _decide(self, each: _OpenRun) -> Decision:
        title = self._backend.traits.title
        if self.snapshot.asked <= each.job.submitted:
            return decision.keep(each.recorded, None)
        since = self.snapshot.since.get(each.run.id)
        unclear_for = time.time() - since if since is not None and self.snapshot.asked > since else 0.0
        clock = Clock.of(self._backend.grace_seconds, asked=self.snapshot.asked, unclear_for=unclear_for)
        job = self._job(each)
        if job is None or self._is_ending_slowly(each, clock):
            job = self._record_of_end(each, job)
        if job is not None:
            if read_reference(each.run).id != job.id:
                write_reference(each.run, self._backend.traits.name, replace(each.job, id=job.id))
            is_pending = job.state is State.PENDING
            never = self._final_reason(each, self._backend.never_starts(job)) if is_pending else None
            return decision.decide(decision.read_status(each.run), title, job, never, clock)
        if each.job.id is None and time.time() - each.job.submitted < SUBMISSION_SECONDS:
            return decision.keep(each.recorded, f"being submitted, or {title} has not responded")
        why = "is its directory a copy?" if each.job.foreign else "was hidl killed while submitting it?"
        name = f"job {each.job.id}" if each.job.id else f"any job of this run: {why}"
        decided = decision.without_job(each.recorded, f"{title} has no record of {name}", clock)
        return self._confirm(each, decided, clock) if decided.action is Action.END else decided

    def _confirm(self, each: _OpenRun, decided: Decision, clock: Clock) -> Decision:
        """Query the job by its id, and return a new decision, or ``decided`` if the job is unknown to the scheduler."""
        title = self._backend.traits.title
        try:
            job = _look_up(self._backend, each.run, each.job, self._elsewhere)
        except NoAnswer as error:
            reason = f"{title} does not list the job, and a query by its id failed: {error}"
            return decision.keep(each.recorded, reason, unclear=True)
        return decided if job is None else decision.decide(decision.read_status(each.run), title, job, None, clock)

    def _final_reason(self, each: _OpenRun, blocker: StartBlocker | None) -> str | None:
        """Return the reason why a job will never start, or None if it has not persisted long enough yet."""
        if blocker is None:
            return None
        name = _hopeless(each)
        self._hopeless.add(name)
        return blocker.reason if self.snapshot.age_of(name) >= blocker.after else None

    def _job(self, each: _OpenRun) -> Job | None:
        return self._backend.find(self._jobs, each.run, each.job)

    def _is_gone(self, each: _OpenRun) -> bool:
        return self._job(each) is None and self.snapshot.asked > each.job.submitted

    def _is_ending_slowly(self, each: _OpenRun, clock: Clock) -> bool:
        """Return whether the scheduler is still cleaning up although the script ended long ago.

        The scheduler's records may explain why.
        """
        job = self._job(each)
        return job is not None and job.ending and clock.is_past_grace(each.recorded)

    def _record_of_end(self, each: _OpenRun, job: Job | None) -> Job | None:
        """Return the job's end from the scheduler's records, unless the record belongs to an earlier attempt.

        ``job`` is an ending job, or None if the job is not listed.
        """
        found = self._recorded.get(each.run.id)
        if found is None or job is None:
            return found or job  # without a record, the job has not ended yet
        is_earlier = (found.ended or 0.0) < (each.recorded.ended or 0.0) - LAG_SECONDS
        return job if is_earlier else found

    def _read_records(self, sought: list[_OpenRun]) -> None:
        """Look up jobs in the scheduler's records if they are no longer listed or take a long time to end.

        Only recorded ends are trusted: a job that the server lost may stay PENDING or RUNNING in the records forever.
        """
        wanted = {each.run.id: each for each in sought if each.run.id not in self._recorded}
        if not wanted or 0 < self.snapshot.age_of(_SILENT) < SILENCE_SECONDS:
            return
        ids = [each.job.id for each in wanted.values()]
        since = min(each.job.submitted for each in wanted.values()) - 60
        try:
            found = self._backend.history(ids, since, self._elsewhere)
        except NoAnswer:
            self._cache.note(over=[_SILENT])
            self._cache.note(begun=[_SILENT])
            found = []
        believed = [job for job in found if job.state.is_final or self._backend.asks_by_id]
        self._recorded |= {id: self._backend.find(believed, each.run, each.job) for id, each in wanted.items()}


def _current_job(
    backend: Backend, jobs: Sequence[Job], run: Run, reference: JobReference
) -> tuple[JobReference, Job | None]:
    """Return a reference to the run's current job, and the job itself if it is in ``jobs``.

    The job that continues the run is the current one if it is in ``jobs`` and the job of ``reference`` has ended.
    """
    job = backend.find(jobs, run, reference)
    next_job = run.next_job()
    if next_job is None or next_job == reference.id or (job is not None and not job.state.is_final):
        return reference, job
    following = replace(reference, id=next_job)
    found = backend.find(jobs, run, following)
    return (reference, job) if found is None else (following, found)


def _look_up(backend: Backend, run: Run, reference: JobReference, cluster: str | None) -> Job | None:
    """Query the run's job by its id; if the id is unknown, search for it in the scheduler's records."""
    id = reference.id
    if id is None:
        with suppress(NoAnswer):
            recorded = backend.find(backend.history([None], reference.submitted - 60, cluster), run, reference)
            id = recorded.id if recorded else None
    job = backend.look_up(id, cluster) if id is not None else None
    return backend.find([job], run, reference) if job is not None else None


def _hopeless(each: _OpenRun) -> str:
    """Return the name under which ``Snapshot.since`` records that the run's job will never start."""
    return f"{each.run.id} never starts"


def _reference_of(run: Run, recorded: Status) -> JobReference:
    """Return the run's job, with the id that the job recorded if it was resubmitted by hand."""
    known = read_reference(run)
    by_hand = recorded.job and recorded.job != known.id and not known.foreign and is_newer(run)
    return replace(known, id=recorded.job, cancelled=False) if by_hand else known


def _requested_end(run: Run, state: State) -> State:
    """Return the state that hidl requested if it cancelled the run, or else ``state``.

    A cancelled script may still have had time to fail.
    """
    failed = state is State.FAILED and _reference_of(run, decision.read_status(run)).cancelled
    with suppress(OSError, ValueError):
        if failed or state is State.CANCELLED:
            return State((run.directory / "reason").read_text(encoding="utf-8").strip())
    return state

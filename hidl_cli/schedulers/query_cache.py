"""The scheduler's last answer about all of a user's jobs: one file for all processes of hidl.

A process that finds it stale refreshes it, under a lock; the others read the answer. However many processes follow
however many runs, a scheduler gets at most one query per interval.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import SchedulerUnreachable

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

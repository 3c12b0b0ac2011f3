"""What a scheduler said last of all of a user's jobs: one file for all processes of hidl.

Whoever finds it older than suits him asks, under a lock; the others read the answer. So however many processes follow
however many runs, a scheduler hears at most one question per interval.
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

SCHEMA = "hidl.board/1"


@dataclass(frozen=True)
class Snapshot:
    """``lines`` are those of the scheduler's last answer; times are in seconds since the epoch, 0: never.

    ``asked`` is when the scheduler was asked last, ``answered`` when it answered last; ``error`` is why it has not
    answered since then. ``since`` says since when something is so whose age a later poll, maybe of another process,
    must know: a job that cannot be found, a service that does not answer.
    """

    asked: float = 0.0
    answered: float = 0.0
    error: str | None = None
    lines: tuple[str, ...] = ()
    since: Mapping[str, float] = field(default_factory=dict)

    def age_of(self, name: str) -> float:
        """For how many seconds something noted has been so; 0 where it is not."""
        return time.time() - self.since[name] if name in self.since else 0.0


class Board:
    """The snapshot in ``file``. ``ask`` puts the question: it gives the answer's lines, or ``SchedulerUnreachable``."""

    def __init__(self, file: Path, ask: Callable[[], Sequence[str]]) -> None:
        self._file = file
        self._ask = ask
        self._own = Snapshot()

    def look(self, max_age: float) -> Snapshot:
        """The snapshot, no older than ``max_age`` seconds, unless another process is asking at this moment."""
        snapshot = self._read()
        if _is_fresh(snapshot, max_age):
            return snapshot
        with self._lock() as got:
            if not got:
                return snapshot
            snapshot = self._read()  # another process may have asked while this one came here
            return snapshot if _is_fresh(snapshot, max_age) else self._write(self._asked(snapshot))

    def note(self, *, begun: Iterable[str] = (), over: Iterable[str] = ()) -> None:
        """Keep for every process what is so from now on, and what is not any more.

        It is let go where another process is asking at this moment: the next poll comes to the same.
        """
        with self._lock() as got:
            if not got:
                return
            last = self._read()
            ended = set(over)
            since = {name: begin for name, begin in last.since.items() if name not in ended}
            for name in begun:
                since.setdefault(name, time.time())
            if since != last.since:
                self._write(replace(last, since=since))

    def _asked(self, last: Snapshot) -> Snapshot:
        now = time.time()
        try:
            lines = tuple(self._ask())
            return replace(last, asked=now, answered=time.time(), error=None, lines=lines)
        except SchedulerUnreachable as error:
            return replace(last, asked=now, error=error.message)

    def _read(self) -> Snapshot:
        try:
            document = read_json(self._file)
            if document.pop("schema") == SCHEMA:
                read = Snapshot(**{**document, "lines": tuple(document["lines"])})
                if read.asked >= self._own.asked:
                    self._own = read
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # there is none yet, or it cannot be read: then this process has its own
        return self._own

    def _write(self, snapshot: Snapshot) -> Snapshot:
        self._own = snapshot
        with suppress(OSError):  # no room: each process has its own, then
            write_json(self._file, {"schema": SCHEMA, **asdict(snapshot)})
        return snapshot

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Give whether this process has the lock; where the file system has no locks, each is on its own."""
        descriptor = None
        got = True
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
    """By the time of the answer: a scheduler that answers slowly is not asked again at once.

    A time that lies ahead is that of a machine whose clock is wrong.
    """
    return -1 < time.time() - max(snapshot.asked, snapshot.answered) < max_age

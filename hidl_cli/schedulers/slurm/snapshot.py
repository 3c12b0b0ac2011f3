"""What Slurm said last of all of a user's jobs: one file for all processes of hidl, asked for by one of them at a time.

Whoever finds it older than suits him asks, under a lock, and the others read the answer; so however many follow however
many runs, Slurm hears at most one ``squeue`` per interval.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hidl_cli.documents import read_json, write_json
from hidl_cli.schedulers.slurm import jobs, programs
from hidl_cli.schedulers.slurm.jobs import Job

SCHEMA = "hidl.slurm-snapshot/1"


@dataclass(frozen=True)
class Snapshot:
    """Times are in seconds since the epoch, 0: never. ``lines`` are squeue's.

    ``asked`` is when Slurm was asked last, ``answered`` when it answered last; ``error`` is why it did not since then.
    ``missing`` says since when a job (or a run, where its job is not known) is not to be found.
    ``accounting_failed`` is when the accounting did not answer.
    """

    asked: float = 0
    answered: float = 0
    error: str | None = None
    lines: tuple[str, ...] = ()
    missing: Mapping[str, float] = field(default_factory=dict)
    accounting_failed: float = 0

    @cached_property
    def _by_id(self) -> dict[str, Job]:
        return {job.id: job for job in jobs.read(self.lines)}

    def job(self, number: str | None, directory: str) -> Job | None:
        """The job of that number, or the last one that was submitted from that directory.

        A number alone is not believed: a cluster that is set up anew counts from 1 again.
        """
        if number is not None:
            job = self._by_id.get(number)
            return job if job and job.directory in ("", directory) else None
        found = [job for job in self._by_id.values() if job.directory == directory]
        return max(found, key=lambda job: int(job.id), default=None)


class Board:
    """The snapshot of one cluster; ``cluster`` is None for the one that Slurm's programs speak to by themselves."""

    def __init__(self, directory: Path, name: str, cluster: str | None) -> None:
        self._file = directory / f"{name}.json"
        self._cluster = cluster
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
            if _is_fresh(snapshot, max_age):
                return snapshot
            return self._write(self._ask(snapshot))

    def note(self, *, missing: Iterable[str] = (), found: Iterable[str] = (), accounting_failed: bool = False) -> None:
        """Keep what was learnt beside squeue's answer, for every process; another time where one is asking now."""
        with self._lock() as got:
            if not got:
                return
            last = self._read()
            gone = set(found)
            since = {name: since for name, since in last.missing.items() if name not in gone}
            for name in missing:
                since.setdefault(name, time.time())
            failed = time.time() if accounting_failed else last.accounting_failed
            if (since, failed) != (last.missing, last.accounting_failed):
                self._write(replace(last, missing=since, accounting_failed=failed))

    def _ask(self, last: Snapshot) -> Snapshot:
        now = time.time()
        try:
            if last.error is not None:
                programs.ping()  # where nobody listens it tells at once, for which squeue needs ten seconds
            completed = programs.call(*jobs.squeue(programs.me(), self._cluster))
        except programs.NoAnswer as silence:
            return replace(last, asked=now, error=str(silence))
        if completed.status != 0:
            return replace(last, asked=now, error=programs.said(completed))
        return replace(last, asked=now, answered=now, error=None, lines=tuple(completed.stdout.splitlines()))

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
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            yield True
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            yield True
        finally:
            os.close(descriptor)


def _is_fresh(snapshot: Snapshot, max_age: float) -> bool:
    """A time that lies ahead is that of a machine whose clock is wrong."""
    return -1 < time.time() - snapshot.asked < max_age

"""The results store's SQLite file: locking, connections, tables and queries."""

from __future__ import annotations

import glob
import json
import os
import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from hidl_cli.analysis.samples import Sample
from hidl_cli.errors import HidlError, MissingPrecondition, hint_for
from hidl_cli.store.extract import RunWithSamples

_MOUNTS = Path("/proc/self/mountinfo")


def locks_hold(directory: Path) -> bool:
    """Return whether SQLite's ``fcntl`` locks work across all machines that mount the file system.

    They do not work on Lustre without the mount option ``flock`` (mount.lustre(8): ``localflock``, ``noflock`` or, in
    older versions, nothing) and on NFS with ``nolock``, ``local_lock=all`` or ``local_lock=posix`` (nfs(5)). All other
    file systems are assumed to follow POSIX.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    kind, options = mount_of(directory.resolve(), mounts)
    if kind == "lustre":
        return "flock" in options
    if kind.startswith("nfs"):
        return not options & {"nolock", "local_lock=all", "local_lock=posix"}
    return True


def mount_of(directory: Path, mounts: str) -> tuple[str, frozenset[str]]:
    """Return the type and options of a directory's file system, given the text of ``mountinfo`` (proc(5)).

    The last of the longest matching mount points is used, because a later mount hides earlier ones.
    """
    longest, found = -1, ("", frozenset[str]())
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        place = _unescaped(fields[4])
        if directory.is_relative_to(place) and len(place) >= longest:
            longest = len(place)
            found = (rest[0], frozenset(fields[5].split(",")) | frozenset(rest[2].split(",")))
    return found


def _unescaped(text: str) -> str:
    """Decode blanks, tabs, newlines and backslashes, which ``mountinfo`` encodes in octal."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text


# A lock file that works on any file system and contains its owner's name.


#: Seconds after which another machine's unchanged lock counts as abandoned.
PATIENCE = 60.0
_REPORT_AFTER = 1.0


class Busy(HidlError):
    """Another writer did not release the lock in time."""


@dataclass(frozen=True)
class HeldLock:
    """A lock held by this process."""

    file: Path
    token: str

    def confirm(self) -> None:
        """Raise ``Busy`` if another process took over the lock while this one was suspended."""
        if _read(self.file).get("token") != self.token:
            raise Busy(
                f"{_format_owner(_read(self.file))} took over {self.file} while this process was suspended",
                hint="run the command again",
            )


@contextmanager
def hold_lock(
    file: Path, *, on_wait: Callable[[str], None] = lambda _: None, at_most: float | None = None
) -> Iterator[HeldLock]:
    """Hold the lock ``file``. ``on_wait`` is called with a message after more than a second of waiting.

    Raises ``Busy`` after ``at_most`` seconds (None means no limit), and ``OSError`` if the directory is not writable.
    """
    lock = _acquire(file, on_wait, at_most)
    try:
        yield lock
    finally:
        if _read(file).get("token") == lock.token:
            file.unlink(missing_ok=True)


def sweep(file: Path) -> None:
    """Remove files that killed processes on this machine left next to the lock ``file``.

    If a process was killed before it could write its name, it left an empty file, which is removed after ``PATIENCE``.
    """
    for mine in file.parent.glob(f"{glob.escape(file.name)}.*"):
        owner = _read(mine)
        if "pid" not in owner:
            _remove_old(mine)
        elif _is_local(owner) and not _is_alive(owner["pid"], owner["started"]):
            mine.unlink(missing_ok=True)


def _acquire(file: Path, on_wait: Callable[[str], None], at_most: float | None) -> HeldLock:
    token = secrets.token_hex(8)
    mine = file.with_name(f"{file.name}.{token}")
    started = time.monotonic()
    watch = _LockWatch()
    reported = False
    try:
        _write(mine, _own_record(token))
        while not _link(mine, file):
            owner = _read(file)
            if watch.is_stale(owner):
                _break(file, owner)
                continue
            seconds = time.monotonic() - started
            if at_most is not None and seconds > at_most:
                raise Busy(
                    f"{_format_owner(owner)} is still writing to {file.parent}",
                    hint="try again later, or run hidl results reindex, which waits and takes over an abandoned lock",
                )
            if seconds > _REPORT_AFTER and not reported:
                on_wait(f"waiting for {_format_owner(owner)}, which is writing to {file.parent}")
                reported = True
            time.sleep(random.uniform(0.005, 0.05))
    finally:
        mine.unlink(missing_ok=True)
    return HeldLock(file, token)


def _write(file: Path, owner: dict[str, Any]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(owner, opened)


def _link(mine: Path, file: Path) -> bool:
    """Try to create the lock. The link count shows the result even if the reply to link(2) was lost."""
    with suppress(FileExistsError):
        os.link(mine, file)
    return mine.stat().st_nlink == 2


class _LockWatch:
    """An observer of how long a lock has remained unchanged."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._since = time.monotonic()

    def is_stale(self, owner: dict[str, Any]) -> bool:
        """Return whether the lock was abandoned."""
        if not owner:
            return False
        if owner != self._seen:
            self._seen, self._since = owner, time.monotonic()
        if _is_local(owner):
            return not _is_alive(owner["pid"], owner["started"])
        return time.monotonic() - self._since > PATIENCE


def _break(file: Path, owner: dict[str, Any]) -> None:
    """Remove an abandoned lock. Only one process may remove the lock with a given token."""
    claim = file.with_name(f"{file.name}.{owner.get('token')}.left")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        time.sleep(0.05)
        _remove_old(claim)  # the process that created it may have died, too
        return
    try:
        if _read(file) == owner:
            file.unlink(missing_ok=True)
            file.with_name(f"{file.name}.{owner.get('token')}").unlink(missing_ok=True)
    finally:
        claim.unlink(missing_ok=True)


def _remove_old(file: Path) -> None:
    """Remove a file that has not changed for ``PATIENCE``."""
    with suppress(FileNotFoundError):
        if abs(time.time() - file.stat().st_mtime) > PATIENCE:
            file.unlink()


def _own_record(token: str) -> dict[str, Any]:
    return {
        "token": token,
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "place": _place(),
        "host": os.uname().nodename,
        "user": os.environ.get("USER") or f"uid {os.getuid()}",
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _read(file: Path) -> dict[str, Any]:
    """Read the owner from a lock file. The owner is empty if the file is missing."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        document = None
    whole = isinstance(document, dict) and document.keys() >= {"token", "pid", "started", "place"}
    return document if whole else {"token": "unreadable"}


def _format_owner(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another hidl"
    return f"hidl with pid {owner['pid']} of {owner.get('user')} on {owner.get('host')}, since {owner.get('since')}"


def _place() -> str | None:
    """Identify the scope of process ids (the machine's boot and the PID namespace). Returns None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_local(owner: dict[str, Any]) -> bool:
    """Return True if the owner's process id is valid on this machine."""
    return owner.get("place") is not None and bool(owner["place"] == _place())


def _is_alive(pid: int, started: str | None) -> bool:
    """Return True if the process still exists, even if ``hidepid`` hides it from this user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) in (started, None)


def _started(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot, ``ended`` for a zombie, or None if it is hidden."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if fields[0] in "ZX" else fields[19]


# The database: tables, versions and connections.


#: Incremented when the tables change. Older files are emptied and filled again from the run directories.
VERSION = 2
#: ``PRAGMA application_id``: the letters "hidl".
APPLICATION = 0x6869646C

TABLES = """
CREATE TABLE directories (
    id INTEGER PRIMARY KEY, root TEXT NOT NULL, name TEXT NOT NULL, outcome TEXT NOT NULL, read_as TEXT NOT NULL,
    UNIQUE (root, name)
);
CREATE TABLE roots (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY REFERENCES directories (id), run TEXT NOT NULL UNIQUE, created TEXT NOT NULL,
    time INTEGER NOT NULL, site TEXT NOT NULL, partition TEXT, workload TEXT NOT NULL, parameters TEXT NOT NULL,
    stack TEXT NOT NULL, lock TEXT NOT NULL, launcher TEXT NOT NULL, mpi TEXT NOT NULL, tuning TEXT NOT NULL,
    verdict TEXT, reason TEXT, efficiency REAL, metric TEXT
);
CREATE INDEX runs_by_time ON runs (time);
CREATE INDEX runs_by_workload ON runs (workload, site, time);
CREATE INDEX runs_by_site ON runs (site, time);
CREATE TABLE host_lists (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE);
CREATE TABLE hosts (
    host TEXT NOT NULL, host_list INTEGER NOT NULL REFERENCES host_lists (id), PRIMARY KEY (host, host_list)
) WITHOUT ROWID;
CREATE TABLE series (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE);
CREATE TABLE metrics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, unit TEXT NOT NULL, better TEXT NOT NULL, UNIQUE (name, unit, better)
);
CREATE TABLE steps (
    run INTEGER NOT NULL REFERENCES runs (id), step INTEGER NOT NULL, series INTEGER NOT NULL REFERENCES series (id),
    nodes INTEGER NOT NULL, ranks INTEGER NOT NULL, repetition INTEGER NOT NULL, point TEXT NOT NULL,
    host_list INTEGER NOT NULL REFERENCES host_lists (id), PRIMARY KEY (run, step)
) WITHOUT ROWID;
CREATE INDEX steps_by_host_list ON steps (host_list);
CREATE TABLE samples (
    run INTEGER NOT NULL REFERENCES runs (id), step INTEGER NOT NULL, metric INTEGER NOT NULL REFERENCES metrics (id),
    rank INTEGER NOT NULL, series INTEGER NOT NULL REFERENCES series (id), time INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (run, step, metric, rank)
) WITHOUT ROWID;
CREATE INDEX samples_over_time ON samples (series, metric, time, run, step, rank);
CREATE VIEW results AS
SELECT r.run, r.created, r.site, r.partition, r.workload, r.parameters, r.stack, r.lock, r.launcher, r.mpi, r.tuning,
    r.verdict, c.digest AS series, t.point, t.nodes, t.ranks, t.repetition, m.name AS metric, m.unit,
    nullif(m.better, '') AS better, s.value, nullif(s.rank, -1) AS rank, h.names AS hosts,
    d.root || '/' || d.name AS directory, s.time
FROM samples s JOIN steps t ON t.run = s.run AND t.step = s.step JOIN runs r ON r.id = s.run
    JOIN directories d ON d.id = s.run JOIN metrics m ON m.id = s.metric JOIN series c ON c.id = s.series
    JOIN host_lists h ON h.id = t.host_list;
"""

_READ_SECONDS = 60
_REINDEX = "hidl results reindex renames the file and rebuilds the store from the run directories"


class UnusableStore(MissingPrecondition):
    """The file is damaged or not a results store."""


class MissingStore(MissingPrecondition):
    """The store does not exist yet."""


class OutdatedStore(MissingPrecondition):
    """The store was written by an earlier version of hidl and must be rebuilt."""


class _State(Enum):
    """The state of a store file."""

    EMPTY = "nothing"
    OLD = "tables of an earlier hidl"
    CURRENT = "the tables"


@dataclass(frozen=True)
class Database:
    """The SQLite file of the store. See ``hold_lock`` for ``on_wait`` and ``at_most``."""

    file: Path
    on_wait: Callable[[str], None] = lambda _: None
    at_most: float | None = None

    @property
    def lock(self) -> Path:
        """The writers' lock file."""
        return self.file.with_name(f"{self.file.name}.lock")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for reading. Keep the context short, because an open connection blocks writers' commits.

        Raises ``MissingStore``, ``UnusableStore``, ``OutdatedStore``, or ``HidlError`` for other SQLite errors.
        """
        with self._translate_errors(), self._exclude_writers():
            try:
                connection = self._open("ro")
            except sqlite3.OperationalError as error:
                if not _needs_rollback(error):
                    raise
                self._roll_back()
                connection = self._open("ro")
            with closing(connection):
                yield connection

    @contextmanager
    def writing(self, *, renew: bool = False) -> Iterator[sqlite3.Connection]:
        """Open a write transaction, which is committed at the end of the block. Only one can be open at a time.

        Creates the file if necessary, with the permissions that the umask allows. ``renew`` replaces the tables written
        by an earlier version of hidl with empty ones, keeping the list of roots. Raises the same errors as ``reading``.
        """
        with self._translate_errors():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most) as lock:
                with suppress(FileExistsError):
                    os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
                with closing(self._open("rw", renew=renew)) as connection:
                    yield connection
                    lock.confirm()
                    connection.commit()

    def put_aside(self) -> Path | None:
        """Rename the file if it is not a usable store. Returns its new name, or None if it was not renamed."""
        if not self.file.exists():
            return None
        sweep(self.lock)
        with self._translate_errors(), hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most):
            try:
                self._open("rw").close()
            except (MissingStore, OutdatedStore):
                return None
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
            except UnusableStore:
                pass
            else:
                return None
            number = 1
            while (aside := self.file.with_name(f"{self.file.name}.aside-{number}")).exists():
                number += 1
            self.file.rename(aside)
            for more in ("-journal", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{self.file}{more}").rename(f"{aside}{more}")
            return aside

    def _open(self, mode: str, *, renew: bool = False) -> sqlite3.Connection:
        if not self.file.exists():
            raise MissingStore(f"{self.file} does not exist yet", hint="hidl results reindex creates it")
        connection = sqlite3.connect(self._address(mode), uri=True, timeout=_READ_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            self._check_version(connection)  # before anything is changed
            if mode == "rw":
                connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")
            state = self._check_version(connection)
            if mode == "rw" and (state is _State.EMPTY or (renew and state is _State.OLD)):
                _create_tables(connection)
            elif state is _State.OLD:
                raise OutdatedStore(
                    f"{self.file} was written by an earlier version of hidl",
                    hint="hidl results reindex rebuilds it from the run directories",
                )
            elif state is _State.EMPTY:
                raise MissingStore(f"{self.file} is empty", hint="hidl results reindex fills it")
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self, mode: str) -> str:
        return f"{self.file.absolute().as_uri()}?mode={mode}" + ("" if self._locks_hold else "&nolock=1")

    def _check_version(self, connection: sqlite3.Connection) -> _State:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not tables:
            return _State.EMPTY
        if application != APPLICATION:
            raise UnusableStore(f"{self.file} is an SQLite file, but not a results store of hidl", hint=_REINDEX)
        if version > VERSION:
            raise MissingPrecondition(
                f"{self.file} was written by a newer hidl (tables of version {version}, expected {VERSION})",
                hint="use that version of hidl, or set HIDL_RESULTS to another file",
            )
        return _State.OLD if version < VERSION else _State.CURRENT

    @property
    def _locks_hold(self) -> bool:
        return locks_hold(self.file.parent)

    @contextmanager
    def _exclude_writers(self) -> Iterator[None]:
        """Exclude writers while reading if SQLite's own locks do not work."""
        if self._locks_hold or not self.file.exists():
            yield
        else:
            with hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most):
                yield

    def _roll_back(self) -> None:
        """Undo a killed writer's unfinished transaction by opening the file for writing."""
        alone = hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most) if self._locks_hold else nullcontext()
        with alone, suppress(OutdatedStore):
            self._open("rw").close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate SQLite and file system errors into errors with a hint."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise UnusableStore(f"{self.file} is damaged, or not an SQLite file: {error}", hint=_REINDEX) from error
            raise HidlError(f"cannot use the results in {self.file}: {error}", hint=_hint(error)) from error
        except OSError as error:
            raise HidlError(f"cannot write the results in {self.file}: {error}", hint=hint_for(error, _ROOM)) from error


def _create_tables(connection: sqlite3.Connection) -> None:
    roots: list[tuple[str]] = []
    with suppress(sqlite3.OperationalError):  # tables written by another version may have different columns
        roots = connection.execute("SELECT DISTINCT root FROM directories").fetchall()
    existing = "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%'"
    for kind, name in connection.execute(existing).fetchall():
        connection.execute(f'DROP {kind} "{name}"')
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.executemany("INSERT INTO roots VALUES (?)", roots)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


_ROOM = "free some space, or set HIDL_RESULTS to another file; the run directories are complete"


def _hint(error: sqlite3.DatabaseError) -> str:
    text = str(error)
    if "locked" in text:
        return "another program is using the file (an open sqlite3 shell?): try again when it has exited"
    if "readonly" in text:
        return "set HIDL_RESULTS to a writable file; the run directories are complete"
    return _ROOM


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Detect SQLITE_NOTADB and SQLITE_CORRUPT by their messages, because Python 3.10 has no error codes."""
    return "not a database" in str(error) or "malformed" in str(error)


def _needs_rollback(error: sqlite3.OperationalError) -> bool:
    """Detect a journal that a read-only connection cannot replay (SQLITE_READONLY_ROLLBACK and similar errors)."""
    return "readonly" in str(error)


# Writing, within the caller's transaction.


_NO_RANK = -1


def insert(connection: sqlite3.Connection, records: Iterable[RunWithSamples]) -> int:
    """Insert runs, replacing their directories' earlier records, and return the number of inserted runs."""
    return sum(_insert(connection, record) for record in records)


def note(connection: sqlite3.Connection, root: str, names: Mapping[str, str], outcome: str) -> None:
    """Record directories without results.

    ``names`` maps each name to a stamp. A directory is read again if its stamp has changed.
    """
    for name, read_as in names.items():
        _note(connection, root, name, outcome, read_as)


def drop(connection: sqlite3.Connection, root: str, names: Iterable[str]) -> None:
    """Delete the rows of directories and of their runs."""
    for name in names:
        for (id_,) in connection.execute("SELECT id FROM directories WHERE root = ? AND name = ?", (root, name)):
            _forget(connection, id_)
        connection.execute("DELETE FROM directories WHERE root = ? AND name = ?", (root, name))


def purge(connection: sqlite3.Connection) -> None:
    """Delete unreferenced rows."""
    connection.execute("DELETE FROM host_lists WHERE id NOT IN (SELECT host_list FROM steps)")
    connection.execute("DELETE FROM hosts WHERE host_list NOT IN (SELECT id FROM host_lists)")
    connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM steps)")
    connection.execute("DELETE FROM metrics WHERE id NOT IN (SELECT metric FROM samples)")


def _insert(connection: sqlite3.Connection, record: RunWithSamples) -> bool:
    """Insert a run. Returns False if it is a copy of an indexed run whose directory still exists."""
    other = connection.execute(
        "SELECT d.root, d.name FROM runs r JOIN directories d ON d.id = r.id WHERE r.run = ?", (record.run,)
    ).fetchone()
    if other and other != (record.root, record.name):
        if Path(*other).is_dir():
            _note(connection, record.root, record.name, "copy", "")
            return False
        drop(connection, other[0], [other[1]])
    id_ = _note(connection, record.root, record.name, "judged", "")
    connection.execute(
        f"INSERT INTO runs VALUES ({','.join('?' * 17)})",
        (
            id_,
            record.run,
            record.created,
            record.time,
            record.site,
            record.partition,
            record.workload,
            json.dumps(dict(record.parameters)),
            record.stack,
            record.lock,
            record.launcher,
            record.mpi,
            json.dumps(dict(record.tuning)),
            record.verdict,
            record.reason,
            record.efficiency,
            record.metric,
        ),
    )
    _insert_samples(connection, id_, record)
    return True


def _insert_samples(connection: sqlite3.Connection, run: int, record: RunWithSamples) -> None:
    steps = dict(zip(record.steps, record.samples, strict=True))
    series = {sample.series: 0 for sample in steps.values()}
    for digest in series:
        series[digest] = _id(connection, "series", "digest", (digest,))
    connection.executemany(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run,
                step,
                series[sample.series],
                sample.nodes,
                sample.ranks,
                sample.repetition,
                json.dumps(dict(sample.point)),
                _host_list(connection, sample.hosts),
            )
            for step, sample in steps.items()
        ],
    )
    metrics = {_metric(sample): 0 for sample in record.samples}
    for metric in metrics:
        metrics[metric] = _id(connection, "metrics", "name, unit, better", metric)
    connection.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run,
                step,
                metrics[_metric(sample)],
                _NO_RANK if sample.rank is None else sample.rank,
                series[sample.series],
                record.time,
                sample.value,
            )
            for step, sample in zip(record.steps, record.samples, strict=True)
        ],
    )


def _metric(sample: Sample) -> tuple[str, str, str]:
    return sample.metric, sample.unit, sample.better or ""


def _host_list(connection: sqlite3.Connection, hosts: Sequence[str]) -> int:
    names = json.dumps(list(hosts))
    id_ = _id(connection, "host_lists", "names", (names,))
    connection.executemany("INSERT OR IGNORE INTO hosts VALUES (?, ?)", [(host, id_) for host in hosts])
    return id_


def _id(connection: sqlite3.Connection, table: str, columns: str, values: tuple[str, ...]) -> int:
    """Return the id of a shared row, which is inserted if missing."""
    marks = ", ".join("?" * len(values))
    found = connection.execute(f"SELECT id FROM {table} WHERE ({columns}) = ({marks})", values).fetchone()
    if found:
        return int(found[0])
    return int(connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values).lastrowid or 0)


def _note(connection: sqlite3.Connection, root: str, name: str, outcome: str, read_as: str) -> int:
    """Set a directory's outcome, delete its earlier rows, and return its id."""
    connection.execute(
        "INSERT INTO directories (root, name, outcome, read_as) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (root, name) DO UPDATE SET outcome = excluded.outcome, read_as = excluded.read_as",
        (root, name, outcome, read_as),
    )
    (id_,) = connection.execute("SELECT id FROM directories WHERE root = ? AND name = ?", (root, name)).fetchone()
    _forget(connection, id_)
    return int(id_)


def _forget(connection: sqlite3.Connection, id_: int) -> None:
    connection.execute("DELETE FROM samples WHERE run = ?", (id_,))
    connection.execute("DELETE FROM steps WHERE run = ?", (id_,))
    connection.execute("DELETE FROM runs WHERE id = ?", (id_,))


# Reading. Values shared by many samples (run, hosts) are read only once.


#: The sort key for the samples of a metric in a series: time, run, step, rank.
Key = tuple[int, int, int, int]

#: Maximum number of values per statement in SQLite before 3.32.
_VALUES = 900

_SAMPLES = """
SELECT s.time, s.run, s.step, s.rank, s.value, m.name, m.unit, m.better, c.digest, t.nodes, t.ranks, t.repetition,
    t.host_list, t.point
FROM samples s JOIN metrics m ON m.id = s.metric JOIN series c ON c.id = s.series
JOIN steps t ON t.run = s.run AND t.step = s.step JOIN runs r ON r.id = s.run WHERE
"""


def read(connection: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[tuple[Key, Sample]]:
    """Return the samples that match ``where`` (condition, order and limit), each with its key.

    In ``where``, ``s`` is the sample, ``t`` its step, ``r`` its run and ``m`` its metric.
    """
    rows = connection.execute(_SAMPLES + where, values).fetchall()
    runs = {
        row[0]: _run(row)
        for row in _by_ids(
            connection,
            "SELECT id, run, created, site, partition, workload, stack, lock, launcher, mpi, parameters, tuning, "
            "verdict FROM runs WHERE id",
            {row[1] for row in rows},
        )
    }
    hosts = {
        id_: tuple(json.loads(names))
        for id_, names in _by_ids(connection, "SELECT id, names FROM host_lists WHERE id", {row[12] for row in rows})
    }
    return [
        (
            (time, run, step, rank),
            Sample(
                **_with_point(runs[run], point),
                series=series,
                nodes=nodes,
                ranks=ranks,
                repetition=repetition,
                metric=name,
                unit=unit,
                better=better or None,
                value=value,
                rank=None if rank < 0 else rank,
                hosts=hosts[host_list],
            ),
        )
        for time, run, step, rank, value, name, unit, better, series, nodes, ranks, repetition, host_list, point in rows
    ]


def _run(row: Sequence[Any]) -> dict[str, Any]:
    keys = ("run", "created", "site", "partition", "workload", "stack", "lock", "launcher", "mpi")
    shared = dict(zip(keys, row[1:10], strict=True))
    return {**shared, "parameters": json.loads(row[10]), "tuning": json.loads(row[11]), "verdict": row[12]}


def _with_point(run: dict[str, Any], point: str) -> dict[str, Any]:
    """Return the run's shared values, combined with the parameters of one point in its matrix."""
    if point == "{}":
        return run
    changed = json.loads(point)
    return {**run, "parameters": {**run["parameters"], **changed}, "point": changed}


def _by_ids(connection: sqlite3.Connection, sql: str, ids: Iterable[int]) -> Iterator[Any]:
    ordered = sorted(ids)
    for begin in range(0, len(ordered), _VALUES):
        some = ordered[begin : begin + _VALUES]
        yield from connection.execute(f"{sql} IN ({','.join('?' * len(some))})", some)

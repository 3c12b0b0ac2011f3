"""The SQLite file of the store: its tables, its versions, and connections for reading and writing.

SQLite keeps a rollback journal (``DELETE``): the write-ahead log requires memory shared by all processes, which does
not exist across machines. Writers take turns by ``write_lock.hold_lock``; SQLite's locks separate readers from the
writer, and where these locks do not hold (``locks_hold``), readers take turns with the writers.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.store.sqlite.filesystem import locks_hold
from hidl_cli.store.sqlite.write_lock import hold_lock, sweep

#: Counted up whenever the tables change: an older file is emptied and filled again from the run directories.
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
_REINDEX = "hidl results reindex puts the file aside and rebuilds the index from the run directories"


class Unusable(MissingPrecondition):
    """The file is damaged or not a store."""


class Absent(MissingPrecondition):
    """The store does not exist yet."""


class Outdated(MissingPrecondition):
    """The store was written by an earlier hidl and must be filled again."""


class _State(Enum):
    """The content of a file."""

    EMPTY = "nothing"
    OLD = "tables of an earlier hidl"
    CURRENT = "the tables"


@dataclass(frozen=True)
class Database:
    """The file; ``on_wait`` gets a message when one must wait; ``at_most``: seconds that a writer waits for others."""

    file: Path
    on_wait: Callable[[str], None] = lambda _: None
    at_most: float | None = None

    @property
    def lock(self) -> Path:
        """The lock of the writers."""
        return self.file.with_name(f"{self.file.name}.lock")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for reading, to be closed soon: no writer can commit meanwhile.

        Raises ``Absent``, ``Unusable``, ``Outdated``, and ``HidlError`` for other errors of SQLite.
        """
        with self._translate_errors(), self._apart():
            try:
                connection = self._open("ro")
            except sqlite3.OperationalError as error:
                if not _left_behind(error):
                    raise
                self._roll_back()
                connection = self._open("ro")
            with closing(connection):
                yield connection

    @contextmanager
    def writing(self, *, renew: bool = False) -> Iterator[sqlite3.Connection]:
        """Open a write transaction (one at a time), committed at the end.

        ``renew``: replace an earlier hidl's tables by empty ones that keep its roots.

        Creates the file with the permissions of the umask. Raises as ``reading`` does.
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
        """Rename the file if it is not a usable store, and return its new name; else None."""
        if not self.file.exists():
            return None
        sweep(self.lock)
        with self._translate_errors(), hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most):
            try:
                self._open("rw").close()
            except (Absent, Outdated):
                return None
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
            except Unusable:
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
            raise Absent(f"{self.file} does not exist yet", hint="hidl results reindex creates it")
        connection = sqlite3.connect(self._address(mode), uri=True, timeout=_READ_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            self._look(connection)  # before anything is changed
            if mode == "rw":
                connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")
            state = self._look(connection)
            if mode == "rw" and (state is _State.EMPTY or (renew and state is _State.OLD)):
                _make(connection)
            elif state is _State.OLD:
                raise Outdated(
                    f"{self.file} was written by an earlier hidl",
                    hint="hidl results reindex fills it again from the run directories",
                )
            elif state is _State.EMPTY:
                raise Absent(f"{self.file} is empty", hint="hidl results reindex fills it")
        except BaseException:
            connection.close()
            raise
        return connection

    def _address(self, mode: str) -> str:
        return f"{self.file.absolute().as_uri()}?mode={mode}" + ("" if self._locks_hold else "&nolock=1")

    def _look(self, connection: sqlite3.Connection) -> _State:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not tables:
            return _State.EMPTY
        if application != APPLICATION:
            raise Unusable(f"{self.file} is an SQLite file, but not one of hidl's results", hint=_REINDEX)
        if version > VERSION:
            raise MissingPrecondition(
                f"{self.file} was written by a newer hidl (its tables are of version {version}, not {VERSION})",
                hint="use that hidl, or name another file by HIDL_RESULTS",
            )
        return _State.OLD if version < VERSION else _State.CURRENT

    @property
    def _locks_hold(self) -> bool:
        return locks_hold(self.file.parent)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Make readers take turns with writers where SQLite's own locks do not hold."""
        if self._locks_hold or not self.file.exists():
            yield
        else:
            with hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most):
                yield

    def _roll_back(self) -> None:
        """Undo the unfinished transaction of a killed writer by opening the file for writing."""
        alone = hold_lock(self.lock, on_wait=self.on_wait, at_most=self.at_most) if self._locks_hold else nullcontext()
        with alone, suppress(Outdated):
            self._open("rw").close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn what SQLite and the file system complain of into errors that say the next step."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise Unusable(f"{self.file} is damaged, or not an SQLite file: {error}", hint=_REINDEX) from error
            raise HidlError(f"the results in {self.file} cannot be used: {error}", hint=_hint(error)) from error
        except OSError as error:
            raise HidlError(f"the results in {self.file} cannot be written: {error}", hint=_ROOM) from error


def _make(connection: sqlite3.Connection) -> None:
    roots: list[tuple[str]] = []
    with suppress(sqlite3.OperationalError):  # the tables of another version may have other columns
        roots = connection.execute("SELECT DISTINCT root FROM directories").fetchall()
    made = "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%'"
    for kind, name in connection.execute(made).fetchall():
        connection.execute(f'DROP {kind} "{name}"')
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.executemany("INSERT INTO roots VALUES (?)", roots)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


_ROOM = "free some space, or name another file by HIDL_RESULTS; the runs themselves are complete in their directories"


def _hint(error: sqlite3.DatabaseError) -> str:
    text = str(error)
    if "locked" in text:
        return "another program holds the file (an open sqlite3 shell?): try again when it has ended"
    if "readonly" in text:
        return "name a file that you may write by HIDL_RESULTS; the runs themselves are complete in their directories"
    return _ROOM


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """SQLITE_NOTADB and SQLITE_CORRUPT (their numbers are there from Python 3.11 on)."""
    return "not a database" in str(error) or "malformed" in str(error)


def _left_behind(error: sqlite3.OperationalError) -> bool:
    """SQLITE_READONLY_ROLLBACK and its kin: a journal lies there that this connection may not play back."""
    return "readonly" in str(error)

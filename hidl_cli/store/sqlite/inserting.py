"""Write to the store's tables within the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hidl_cli.analysis.samples import Sample
from hidl_cli.store.extract import RunRecord

_NO_RANK = -1


def insert(connection: sqlite3.Connection, records: Iterable[RunRecord]) -> int:
    """Insert these runs, replacing what their directories had; return how many were inserted."""
    return sum(_insert(connection, record) for record in records)


def note(connection: sqlite3.Connection, root: str, names: Mapping[str, str], outcome: str) -> None:
    """Note directories without results, with what was read of each."""
    for name, read_as in names.items():
        _note(connection, root, name, outcome, read_as)


def drop(connection: sqlite3.Connection, root: str, names: Iterable[str]) -> None:
    """Delete these directories and their rows."""
    for name in names:
        for (id_,) in connection.execute("SELECT id FROM directories WHERE root = ? AND name = ?", (root, name)):
            _forget(connection, id_)
        connection.execute("DELETE FROM directories WHERE root = ? AND name = ?", (root, name))


def purge(connection: sqlite3.Connection) -> None:
    """Delete rows that nothing refers to."""
    connection.execute("DELETE FROM host_lists WHERE id NOT IN (SELECT host_list FROM steps)")
    connection.execute("DELETE FROM hosts WHERE host_list NOT IN (SELECT id FROM host_lists)")
    connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM steps)")
    connection.execute("DELETE FROM metrics WHERE id NOT IN (SELECT metric FROM samples)")


def _insert(connection: sqlite3.Connection, record: RunRecord) -> bool:
    """Insert one run; False if it is a copy of an indexed run whose directory still exists."""
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


def _insert_samples(connection: sqlite3.Connection, run: int, record: RunRecord) -> None:
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
                series[one.series],
                one.nodes,
                one.ranks,
                one.repetition,
                json.dumps(dict(one.point)),
                _host_list(connection, one.hosts),
            )
            for step, one in steps.items()
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
    """Return the number of a shared row, which is inserted if missing."""
    marks = ", ".join("?" * len(values))
    found = connection.execute(f"SELECT id FROM {table} WHERE ({columns}) = ({marks})", values).fetchone()
    if found:
        return int(found[0])
    made = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values).lastrowid
    return int(made or 0)


def _note(connection: sqlite3.Connection, root: str, name: str, outcome: str, read_as: str) -> int:
    """Return the number of a directory with its new outcome; its earlier rows are deleted."""
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

"""The results store: a database with one row per sample, which can be rebuilt from run directories, and exported."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from heapq import merge
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Literal

from hidl_cli import paths
from hidl_cli.analysis.samples import Sample
from hidl_cli.errors import HidlError, MissingPrecondition, UsageError, hint_for
from hidl_cli.store.extract import RunWithSamples, StoredRun
from hidl_cli.store.sqlite import Database, Key, MissingStore, drop, insert, note, purge, read


@dataclass(frozen=True)
class Filters:
    """Conditions on samples, in which None matches any value.

    ``since`` and ``until`` limit the run's creation time (inclusive). ``host`` matches a step if it is one of the
    step's hosts. ``of_ranks`` includes values of individual ranks.
    """

    run: str | None = None
    workload: str | None = None
    site: str | None = None
    partition: str | None = None
    stack: str | None = None
    series: str | None = None
    metric: str | None = None
    host: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    of_ranks: bool = True


@dataclass(frozen=True)
class SqlCondition:
    """Part of a WHERE clause, with the values of its placeholders."""

    sql: str
    values: tuple[str | int, ...]


def match_runs(filters: Filters) -> SqlCondition:
    """Return the condition for runs (``r``) that may have matching samples."""
    parts = [*_columns(filters), *_times("r", filters)]
    steps = []
    if filters.series is not None:
        steps.append(("t.series = (SELECT id FROM series WHERE digest = ?)", (filters.series,)))
    if filters.host is not None:
        steps.append(("t.host_list IN (SELECT host_list FROM hosts WHERE host = ?)", (filters.host,)))
    for sql, values in steps:
        parts.append((f"r.id IN (SELECT t.run FROM steps t WHERE {sql})", values))
    if filters.metric is not None:
        metric = "s.metric IN (SELECT id FROM metrics WHERE name = ?)"
        parts.append((f"EXISTS (SELECT 1 FROM samples s WHERE s.run = r.id AND {metric})", (filters.metric,)))
    return _all(parts)


def match_samples(filters: Filters) -> SqlCondition:
    """Return the condition for samples (``s``) and their steps (``t``), in addition to the condition for runs."""
    parts: list[tuple[str, tuple[str | int, ...]]] = []
    parts += _times("s", filters)
    if filters.series is not None:
        parts.append(("s.series = (SELECT id FROM series WHERE digest = ?)", (filters.series,)))
    if filters.metric is not None:
        parts.append(("s.metric IN (SELECT id FROM metrics WHERE name = ?)", (filters.metric,)))
    if filters.host is not None:
        parts.append(("t.host_list IN (SELECT host_list FROM hosts WHERE host = ?)", (filters.host,)))
    if not filters.of_ranks:
        parts.append(("s.rank = -1", ()))
    return _all(parts)


def match_series(filters: Filters) -> SqlCondition:
    """Return the SQL condition for a series and all its metrics: samples (``s``), steps (``t``) and runs (``r``)."""
    samples = match_samples(replace(filters, metric=None))
    return _all([*_columns(filters), (samples.sql, samples.values)])


def _columns(filters: Filters) -> list[tuple[str, tuple[str | int, ...]]]:
    wanted = ((name, getattr(filters, name)) for name in ("run", "workload", "site", "partition", "stack"))
    return [(f"r.{name} = ?", (value,)) for name, value in wanted if value is not None]


def _times(table: str, filters: Filters) -> list[tuple[str, tuple[str | int, ...]]]:
    parts: list[tuple[str, tuple[str | int, ...]]] = []
    if filters.since is not None:
        parts.append((f"{table}.time >= ?", (int(filters.since.timestamp()),)))
    if filters.until is not None:
        parts.append((f"{table}.time <= ?", (int(filters.until.timestamp()),)))
    return parts


def _all(parts: list[tuple[str, tuple[str | int, ...]]]) -> SqlCondition:
    sql = " AND ".join(part for part, _ in parts)
    return SqlCondition(sql or "1", tuple(value for _, values in parts for value in values))


_ANY = Filters()
#: Numbers of samples and runs per read transaction, which limit the time that a reader blocks writers.
_PAGE = 5_000
_RUNS = 100
#: Number of samples per write transaction.
_SAMPLES = 1_000


@dataclass(frozen=True)
class Series:
    """A metric that was measured repeatedly under the same conditions, without values of individual ranks.

    ``count`` is the number of samples; ``first`` and ``last`` are the creation times of its oldest and newest run.
    """

    series: str
    metric: str
    unit: str
    better: str | None
    count: int
    first: str
    last: str
    site: str
    partition: str | None
    workload: str
    parameters: Mapping[str, bool | int | float | str]
    stack: str
    launcher: str
    mpi: str
    nodes: int
    ranks: int


class Store:
    """The results store in an SQLite file (default: ``paths.results()``), which is created when needed.

    ``on_wait`` is called with a message if another writer holds the lock, and ``at_most`` is the maximum number of
    seconds to wait for the lock. Methods raise ``UnusableStore``, ``OutdatedStore``, ``Busy`` or another ``HidlError``.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        on_wait: Callable[[str], None] = lambda _: None,
        at_most: float | None = None,
    ) -> None:
        self.file = file or paths.results()
        self.database = Database(self.file, on_wait, at_most)

    def add(self, records: Iterable[RunWithSamples]) -> int:
        """Add runs, replacing their directories' earlier records, and return the number of added runs.

        Transactions are limited to about a thousand samples, so that other processes wait only briefly. Copies of an
        indexed run are skipped if the original directory still exists.
        """
        added = 0
        for batch in _batches(records):
            with self.database.writing() as connection:
                added += insert(connection, batch)
        return added

    def note(self, root: str, names: Mapping[str, str], outcome: str) -> None:
        """Record directories without results, with the reason ``outcome``, so that they are not read again.

        ``names`` maps each name to a stamp of the plan or status. If the stamp changes, the directory is read again.
        """
        if names:
            with self.database.writing() as connection:
                note(connection, root, names, outcome)

    def drop(self, root: str, names: Iterable[str]) -> None:
        """Delete the records of directories and of their runs."""
        remaining = iter(sorted(names))
        while batch := list(islice(remaining, _RUNS)):
            with self.database.writing() as connection:
                drop(connection, root, batch)

    def drop_root(self, root: str) -> None:
        """Delete the records of all directories under ``root``, and that of ``root`` itself."""
        self.drop(root, self.known(root))
        with self.database.writing() as connection:
            connection.execute("DELETE FROM roots WHERE path = ?", (root,))

    def purge(self) -> None:
        """Delete hosts, series and metrics without samples."""
        with self.database.writing() as connection:
            purge(connection)

    def renew(self) -> None:
        """Replace the tables written by an earlier version of hidl with empty ones, keeping the list of roots."""
        with self.database.writing(renew=True):
            pass

    def known(self, root: str, read_as: str | None = None) -> dict[str, str]:
        """Return the recorded outcomes of the run directories in ``root``, by directory name.

        ``read_as`` excludes directories that only another version of hidl failed to read.
        """
        sql = "SELECT name, outcome FROM directories WHERE root = ?"
        more = " AND (outcome != 'foreign' OR read_as = ?)" if read_as else ""
        return dict(self._rows(sql + more, (root, read_as) if read_as else (root,)))

    def noted(self, root: str, outcome: str) -> dict[str, str]:
        """Return the stamps that are recorded for directories with this outcome, by directory name."""
        sql = "SELECT name, read_as FROM directories WHERE root = ? AND outcome = ?"
        return dict(self._rows(sql, (root, outcome)))

    def roots(self) -> list[str]:
        """Return all roots of run directories, including those known to an earlier version of hidl."""
        return [root for (root,) in self._rows("SELECT path FROM roots UNION SELECT root FROM directories", ())]

    def count(self) -> tuple[int, int]:
        """Return the numbers of runs and samples."""
        counts = self._rows("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM samples)", ())
        return (counts[0][0], counts[0][1]) if counts else (0, 0)

    def runs(self, filters: Filters = _ANY, *, limit: int = -1) -> list[StoredRun]:
        """Return the matching runs, newest first. A ``limit`` of -1 returns all of them."""
        condition = match_runs(filters)
        rows = self._rows(
            f"SELECT {_RUN} FROM runs r JOIN directories d ON d.id = r.id WHERE {condition.sql} "
            "ORDER BY r.time DESC, r.id DESC LIMIT ?",
            (*condition.values, limit),
        )
        return [StoredRun(**_named(StoredRun, row)) for row in rows]

    def find(self, name: str | None) -> StoredRun:
        """Find a run by its id, or by a unique prefix or suffix of the id. None or ``last`` selects the newest run.

        Raises ``UsageError`` if no run or several runs match.
        """
        if name in (None, "last"):
            newest = self.runs(limit=1)
            if not newest:
                raise UsageError("no results yet", hint="hidl run WORKLOAD")
            return newest[0]
        ids = [id_ for (id_,) in self._rows("SELECT run FROM runs", ())]
        fitting = [id_ for id_ in ids if id_ == name] or [
            id_ for id_ in ids if id_.startswith(str(name)) or id_.endswith(str(name))
        ]
        if len(fitting) != 1:
            several = f"{len(fitting)} results match {name!r}: {', '.join(sorted(fitting)[:5])}"
            raise UsageError(
                several if fitting else f"no results for run {name!r}",
                hint="hidl results list shows runs with results, and hidl status shows all runs",
            )
        return self.runs(Filters(run=fitting[0]))[0]

    def samples(self, filters: Filters = _ANY) -> Iterator[Sample]:
        """Yield the matching samples, oldest run first, page by page to limit memory.

        Samples that are added concurrently may be missing.
        """
        if filters.series is not None and filters.metric is not None:
            yield from self._read_series(filters)
            return
        condition = match_runs(filters)
        sql = f"SELECT r.id FROM runs r WHERE {condition.sql} ORDER BY r.time, r.id"
        ids = [id_ for (id_,) in self._rows(sql, condition.values)]
        wanted = match_samples(filters)
        for begin in range(0, len(ids), _RUNS):
            some = ids[begin : begin + _RUNS]
            where = f"s.run IN ({','.join('?' * len(some))}) AND {wanted.sql}"
            page = self._page(f"{where} ORDER BY s.time, s.run, s.step, m.name, s.rank", (*some, *wanted.values))
            yield from (sample for _, sample in page)

    def _read_series(self, filters: Filters) -> Iterator[Sample]:
        """Yield a series's samples of a metric, ordered by time, regardless of their units."""
        ids = self._rows("SELECT id FROM metrics WHERE name = ?", (filters.metric,))
        pages = (self._read_metric(filters, id_) for (id_,) in ids)
        yield from (sample for _, sample in merge(*pages, key=itemgetter(0)))

    def _read_metric(self, filters: Filters, metric: int) -> Iterator[tuple[Key, Sample]]:
        """Yield a series's samples of a metric, page by page."""
        condition = match_series(filters)
        last: Key = (-(2**62), 0, 0, 0)
        while True:
            page = self._page(
                f"{condition.sql} AND s.metric = ? AND (s.time, s.run, s.step, s.rank) > (?, ?, ?, ?) "
                f"ORDER BY s.time, s.run, s.step, s.rank LIMIT {_PAGE}",
                (*condition.values, metric, *last),
            )
            yield from page
            if len(page) < _PAGE:
                return
            last = page[-1][0]

    def series(self, filters: Filters = _ANY) -> list[Series]:
        """Return the series that contain matching samples, starting with the series of the newest run."""
        runs = match_runs(Filters(workload=filters.workload, site=filters.site, stack=filters.stack))
        samples = match_samples(
            Filters(
                series=filters.series, metric=filters.metric, since=filters.since, until=filters.until, of_ranks=False
            )
        )
        sql = _SERIES.format(samples=samples.sql, runs=runs.sql)
        found = [_named(Series, row) for row in self._rows(sql, (*samples.values, *runs.values))]
        return [Series(**{**row, "first": _iso(row["first"]), "last": _iso(row["last"])}) for row in found]

    def _page(self, where: str, values: Sequence[Any]) -> list[tuple[Key, Sample]]:
        try:
            with self.database.reading() as connection:
                return read(connection, where, values)
        except MissingStore:
            return []

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        try:
            with self.database.reading() as connection:
                return connection.execute(sql, values).fetchall()
        except MissingStore:
            return []


_RUN = (
    "r.run, d.root || '/' || d.name, r.created, r.site, r.partition, r.workload, r.parameters, r.stack, r.lock, "
    "r.launcher, r.mpi, r.tuning, r.verdict, r.reason, r.efficiency, r.metric"
)
#: The inner query only needs the index samples_over_time.
_SERIES = """
SELECT c.digest, m.name, m.unit, nullif(m.better, ''), g.count, g.first, g.last, r.site, r.partition, r.workload,
    r.parameters, r.stack, r.launcher, r.mpi, t.nodes, t.ranks
FROM (
    SELECT s.series, s.metric, count(*) AS count, min(s.time) AS first, max(s.time) AS last, max(s.run) AS run
    FROM samples s WHERE {samples} GROUP BY s.series, s.metric
) g
JOIN runs r ON r.id = g.run
JOIN steps t ON t.run = g.run AND t.step = (SELECT min(step) FROM steps WHERE run = g.run AND series = g.series)
JOIN series c ON c.id = g.series JOIN metrics m ON m.id = g.metric
WHERE {runs} ORDER BY g.last DESC, c.digest, m.name
"""


def _named(kind: type[StoredRun | Series], row: Sequence[Any]) -> dict[str, Any]:
    """Map a row's values to the dataclass's fields."""
    named = dict(zip((field.name for field in fields(kind)), row, strict=True))
    return {name: json.loads(value) if name in ("parameters", "tuning") else value for name, value in named.items()}


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _batches(records: Iterable[RunWithSamples]) -> Iterator[list[RunWithSamples]]:
    """Split the records into batches of about a thousand samples or a hundred runs."""
    batch: list[RunWithSamples] = []
    samples = 0
    for record in records:
        batch.append(record)
        samples += len(record.samples)
        if samples >= _SAMPLES or len(batch) >= _RUNS:
            yield batch
            batch, samples = [], 0
    if batch:
        yield batch


def result_document(store: Store, run: StoredRun, *, metric: str | None = None) -> dict[str, Any]:
    """Return a run with its verdict and steps as plain data, read only from the store. ``metric`` selects one metric.

    The ``parameters`` of a step are the matrix parameters. Each metric has a value and a unit, and also has ``ranks``
    if there is a value for each rank.
    """
    steps: dict[tuple[str, int, tuple[str, ...]], dict[str, Any]] = {}
    for sample in store.samples(Filters(run=run.run, metric=metric)):
        key = (sample.series, sample.repetition, sample.hosts)
        step = steps.setdefault(
            key,
            {
                "series": sample.series,
                "nodes": sample.nodes,
                "ranks": sample.ranks,
                "parameters": dict(sample.point),
                "repetition": sample.repetition,
                "hosts": list(sample.hosts),
                "metrics": {},
            },
        )
        found = step["metrics"].setdefault(sample.metric, {"value": sample.value, "unit": sample.unit})
        if sample.rank is not None:
            found.setdefault("ranks", []).append(sample.value)
    document = asdict(run)
    verdict = {"verdict": document.pop("verdict"), "reason": document.pop("reason")}
    return {**document, "metric": metric or run.metric, "verdict": verdict, "steps": list(steps.values())}


Format = Literal["json", "csv", "parquet"]

COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Sample))
#: Number of rows per Parquet row group.
_GROUP = 10_000


def export(samples: Iterable[Sample], form: Format, output: Path | None) -> int:
    """Write the samples to ``output`` (atomically) or to stdout, and return their number.

    Raises ``MissingPrecondition`` if the format requires pyarrow, but pyarrow is not installed, and ``HidlError`` if
    the file cannot be written.
    """
    write = {"json": _write_json, "csv": _write_csv, "parquet": _write_parquet}[form]
    if form == "parquet":
        _pyarrow()
    if output is None:
        count = write(samples, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return count
    try:
        with _replacing(output) as file:
            return write(samples, file)
    except OSError as error:
        hint = hint_for(error, "free some space, or choose another file")
        raise HidlError(f"cannot write {output}: {error}", hint=hint) from error


@contextmanager
def _replacing(output: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces ``output`` at the end. Pipes and devices are written to directly."""
    if output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
        return
    descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _write_json(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write a JSON document with one sample per line."""
    file.write(b'{"schema": "hidl.samples/1", "samples": [')
    count = 0
    for count, sample in enumerate(samples, start=1):
        text = json.dumps(asdict(sample), ensure_ascii=False)
        file.write((",\n" if count > 1 else "\n").encode() + text.encode())
    file.write(b"\n]}\n")
    return count


def _write_csv(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write CSV with one sample per row (RFC 4180). The cells for hosts, parameters, point and tuning contain JSON."""
    rows = csv.writer(_TextAdapter(file))
    rows.writerow(COLUMNS)
    count = 0
    for sample in samples:
        rows.writerow(_flat_row(sample).values())
        count += 1
    return count


class _TextAdapter:
    """A file for the ``csv`` module that encodes text and writes it to a binary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, line: str) -> int:
        return self._file.write(line.encode())


def _write_parquet(samples: Iterable[Sample], file: IO[bytes]) -> int:
    """Write Parquet with the same columns as CSV. Times are text, as in the other formats."""
    pyarrow, parquet = _pyarrow()
    numbers = {"nodes": pyarrow.int64(), "ranks": pyarrow.int64(), "repetition": pyarrow.int64()}
    types = {**numbers, "rank": pyarrow.int64(), "value": pyarrow.float64()}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    remaining = iter(samples)
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(remaining, _GROUP)):
            writer.write_table(pyarrow.Table.from_pylist([_flat_row(sample) for sample in group], schema=schema))
            count += len(group)
    return count


def _flat_row(sample: Sample) -> dict[str, Any]:
    row = {name: getattr(sample, name) for name in COLUMNS}
    nested = {
        "hosts": list(sample.hosts),
        "parameters": dict(sample.parameters),
        "point": dict(sample.point),
        "tuning": dict(sample.tuning),
    }
    return {**row, **{name: json.dumps(value, ensure_ascii=False) for name, value in nested.items()}}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPrecondition(
            f"Parquet export requires pyarrow, which cannot be imported ({error})",
            hint=f"{sys.executable} -m pip install 'hidl[export]', or --format csv",
        ) from error
    return pyarrow, parquet

"""Parse the output of the OSU Micro-Benchmarks (OMB 5.9 to 7.x, and OMB-Py).

Tables are recognized by their headers and columns by their titles. The position of a column is irrelevant, since
options such as ``-f``, ``-c`` and ``-z`` change it. All other lines are skipped: ranks may print to stderr in between.

A table must be complete. The following signs of missing parts are errors:

- a title without a header, or a header without rows;
- a truncated row, or one with fewer or more fields than the header;
- a last row without a newline, since its last number may have lost digits;
- a gap between rows: every size is twice the previous one (1 after 0), in all benchmarks.

A table that ends early between two rows looks like one with a smaller ``-m``. This case needs no check, because a
benchmark that does not finish has a non-zero exit status, which fails the run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

from hidl_cli.errors import MetricMissing


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: ``value`` for a metric, ``other`` for a column to ignore.
        factor: Factor that converts printed values to the unit.
        at_largest: Whether the metric's value is measured at the largest size rather than at a small one.
    """

    kind: Literal["size", "value", "validation", "other"]
    metric: str = ""
    unit: str = ""
    factor: float = 1.0
    at_largest: bool = False


#: Maps each printed unit to the metric's unit and a conversion factor.
_UNITS = {
    "ns": ("us", 1e-3),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "s": ("us", 1e6),
    "mb/s": ("MB/s", 1.0),
    "mb/sec": ("MB/s", 1.0),
    "gb/s": ("MB/s", 1e3),
    "messages/s": ("messages/s", 1.0),
    "%": ("%", 1.0),
}
_QUANTITIES = {
    "latency": "latency",
    "avg latency": "latency",
    "min latency": "latency_min",
    "max latency": "latency_max",
    "bandwidth": "bandwidth",
    "overall": "overall",
    "compute": "compute",
    "coll. init": "collective_init",
    "init avg": "collective_init",  # OMB-Py
    "mpi_test": "test",
    "mpi_wait": "wait",
    "wait avg": "wait",  # OMB-Py
    "pure comm.": "pure_communication",
    "min comm.": "pure_communication_min",
    "max comm.": "pure_communication_max",
    "overlap": "overlap",
}
#: Titles that consist of a unit (osu_mbw_mr).
_BARE = {"mb/s": "bandwidth", "messages/s": "message_rate"}

_TITLE_WITH_UNIT = re.compile(r"^(?P<quantity>.*?)\s*\((?P<unit>[^()]+)\)$")
_PERCENTILE = re.compile(r"^p(?P<percent>\d+)(?:\.(?P<part>\d+))? tail (?P<of>lat|bw)$")


def column_of(title: str) -> Column:
    """Return the column that a title describes."""
    words = title.strip().lower()
    if words in ("size", "size (b)"):
        return Column("size")
    if words == "validation":
        return Column("validation")
    if words in _BARE:
        return _value(_BARE[words], words)
    found = _TITLE_WITH_UNIT.match(words)
    if not found or found["unit"] not in _UNITS:
        return Column("other")
    tail = _PERCENTILE.match(found["quantity"])
    if tail:
        kind = {"lat": "latency", "bw": "bandwidth"}[tail["of"]]
        return _value(f"{kind}_p{tail['percent']}{'_' + tail['part'] if tail['part'] else ''}", found["unit"])
    metric = _QUANTITIES.get(found["quantity"])
    return _value(metric, found["unit"]) if metric else Column("other")


def _value(metric: str, printed: str) -> Column:
    unit, factor = _UNITS[printed]
    return Column("value", metric, unit, factor, at_largest=unit == "MB/s")


_BENCHMARKS = {
    "bandwidth": "bw",
    "bi-directional bandwidth": "bibw",
    "multiple bandwidth / message rate": "mbw_mr",
    "multi latency": "multi_lat",
    "multi-threaded latency": "latency_mt",
    "multi-process latency": "latency_mp",
    "mpi_accumulate latency": "acc_latency",
    "mpi_get_accumulate latency": "get_acc_latency",
    "mpi_compare_and_swap latency": "cas_latency",
    "mpi_fetch_and_op latency": "fop_latency",
    "mpi_get latency": "get_latency",
    "mpi_put latency": "put_latency",
    "mpi_get bandwidth": "get_bw",
    "mpi_put bandwidth": "put_bw",
    "mpi_put bi-directional bandwidth": "put_bibw",
}
_COLLECTIVES = {
    "broadcast": "bcast",
    "all-to-all personalized exchange": "alltoall",
    "all-to-allv personalized exchange": "alltoallv",
    "all-to-allw personalized exchange": "alltoallw",
    "all-to-all": "alltoall",
    "all-to-allv": "alltoallv",
    "all-to-allw": "alltoallw",
}
# The library in a title: "OSU MPI", "OSU MPI-CUDA", "OMB Python MPI", "OMB-Py MPI". Titles of one-sided tests begin
# with the name of the function instead: "OSU MPI_Put-CUDA Latency Test".
_LIBRARY = re.compile(r"^O(?:SU|MB)(?:-Py| Python)?\s+(?:MPI(?:-[A-Z]+(?: MANAGED)?)?\s+)?")
_DEVICE = re.compile(r"-(?:CUDA|ROCM|OPENACC|MANAGED)\b(?: MANAGED)?")


def benchmark_of(title: str) -> str:
    """Return the benchmark's program name without ``osu_``: allreduce for ``OSU MPI-CUDA Allreduce Latency``."""
    words = _DEVICE.sub("", _LIBRARY.sub("", title)).strip().lower()
    if words.replace(" persistent", "") != words:
        return f"{benchmark_of('OSU MPI ' + words.replace(' persistent', ''))}_persistent"
    if words in _BENCHMARKS:
        return _BENCHMARKS[words]
    blocking = re.sub(r"^non-blocking ", "", words)
    neighbour = re.sub(r"^neighborhood ", "", blocking)
    collective = re.sub(r" latency$", "", neighbour)
    name = _COLLECTIVES.get(collective, collective)
    before = ("i" if blocking != words else "") + ("neighbor_" if neighbour != blocking else "")
    return re.sub(r"\W+", "_", f"{before}{name}").strip("_")


Metrics = dict[str, dict[str, Any]]

#: Message size in bytes at which latencies are compared with earlier runs, if available.
HISTORY_SIZE = 8

_HINT = "hidl logs shows the output; OMB prints a table with a header line `# Size ...` for each benchmark"
_WRONG_DATA = "OMB's validation of reductions is wrong for MPI_CHAR with some MPI libraries: try -T mpi_float first"
_WITHOUT_TABLE = ("init", "hello_world")

_TITLE = re.compile(r"^#\s*(?P<title>O(?:SU|MB)\b.*?)\s+Test(?:\s+v?\d\S*)?\s*$")
_DATATYPE = re.compile(r"^#\s*Datatype:\s*(\w+)")
# Titles are separated by two spaces or follow a unit in parentheses, since only one space follows a long title.
_BETWEEN_TITLES = re.compile(r"\s{2,}|(?<=\))\s+")
_ROW_BEGINS = re.compile(r"^\d+(\s{2,}|\t|\s*$)")
_NUMBER = re.compile(r"^-?(\d+(\.\d*)?([eE][-+]?\d+)?|nan|inf)$")
_INIT = re.compile(r"^nprocs: (\d+), min: (\d+) ms, max: (\d+) ms, avg: (\d+) ms$", re.MULTILINE)
_HELLO = re.compile(r"^This is a test with (\d+) processes$", re.MULTILINE)
_INVALID = re.compile(r"^DATA VALIDATION ERROR: (\S+) .* message size (\d+)", re.MULTILINE)


@dataclass
class _Table:
    """A table: the columns named in its header, and the rows read so far."""

    benchmark: str
    datatype: str
    columns: Sequence[Column]
    rows: list[list[str]] = field(default_factory=list)

    @property
    def has_sizes(self) -> bool:
        return self.columns[0].kind == "size"


def parse(text: str) -> Metrics:
    """Parse the output of one or more OMB programs.

    Returns ``{name: {"value", "unit", "samples"[, "sizes"]}}`` with times in us, bandwidths in MB/s (10^6 bytes), rates
    in messages/s and overlaps in %. ``value`` is measured at the largest size for bandwidths, and otherwise at 8 B or,
    if that is missing, at the smallest size. Names are those of ``hidl_workloads.omb``. If there are several
    benchmarks, their names are prefixes (``allreduce_latency``); a benchmark's additional datatypes are suffixes
    (``latency_mpi_int``), and repeated measurements are numbered (``latency_2``).

    Raises ``MetricMissing`` if there is no table, if a table is incomplete, if a value is not finite, or if a benchmark
    received wrong data.
    """
    tables = list(_tables(text))
    startup = _startup(text)
    if not tables and not startup:
        raise MetricMissing("the program printed no table of the OSU Micro-Benchmarks", hint=_HINT)
    for table in tables:
        _check(table)
    if found := _INVALID.search(text):
        raise MetricMissing(f"{found[1]} received wrong data in messages of {found[2]} bytes", hint=_WRONG_DATA)
    metrics = dict(startup)
    for prefix, suffix, table in _with_affixes(tables):
        metrics.update({f"{prefix}{name}{suffix}": found for name, found in _metrics(table).items()})
    return metrics


def _tables(text: str) -> Iterator[_Table]:
    """Yield all tables; raises ``MetricMissing`` if a row is truncated or a title is not followed by a table."""
    benchmark = datatype = awaited = ""
    table: _Table | None = None
    for line in text.splitlines(keepends=True):
        title, kind = _TITLE.match(line), _DATATYPE.match(line)
        columns = _columns(line)
        if title or columns:
            if table is not None:
                yield table
            table = None
        if title and awaited:
            break
        if title:
            benchmark, datatype = benchmark_of(title["title"]), ""
            awaited = "" if benchmark in _WITHOUT_TABLE else benchmark
        elif kind:
            datatype = kind[1].lower()
        elif columns:
            table, awaited = _Table(benchmark, datatype, columns), ""
        elif "window size: varied" in line:
            raise MetricMissing("osu_mbw_mr -V prints a matrix of window sizes, which is not supported", hint="omit -V")
        elif table is not None:
            row = _row(line, table)
            if row:
                table.rows.append(row)
    if table is not None:
        yield table
    if awaited:
        raise MetricMissing(f"osu_{awaited} printed its title but no table", hint=_HINT)


def _columns(line: str) -> tuple[Column, ...]:
    """Return the columns of a header, or none for any other line. Without sizes, some versions omit the ``#``."""
    marked = line.startswith("#")
    titles = _BETWEEN_TITLES.split(line.removeprefix("#").strip())
    columns = tuple(column_of(title) for title in titles)
    is_header = columns[0].kind in ("size", "value") and any(column.kind == "value" for column in columns)
    return columns if is_header and (marked or columns[0].kind == "value") else ()


def _row(line: str, table: _Table) -> list[str] | None:
    """Return the fields of a row, or None for any other line."""
    fields = line.split()
    kinds = [column.kind for column in table.columns]
    whole = len(fields) == len(kinds) and all(_fits(f, kind) for f, kind in zip(fields, kinds, strict=True))
    if not table.has_sizes:
        return fields if whole and not table.rows and line.endswith("\n") else None
    if whole and line.endswith("\n"):
        return fields
    if whole or _ROW_BEGINS.match(line):
        raise MetricMissing(
            f"the table of {_program(table)} is truncated or damaged in the row {line.strip()!r}", hint=_HINT
        )
    return None


def _fits(text: str, kind: str) -> bool:
    if kind == "size":
        return text.isdecimal()
    return bool(_NUMBER.match(text)) if kind == "value" else True


def _check(table: _Table) -> None:
    """Raise ``MetricMissing`` if rows are missing, a value is invalid, or a validation failed."""
    if not table.rows:
        raise MetricMissing(f"the table of {_program(table)} has a header but no rows", hint=_HINT)
    for row in table.rows:
        at = f" at {row[0]} bytes" if table.has_sizes else ""
        for column, text in zip(table.columns, row, strict=True):
            if column.kind == "validation" and text.lower() == "fail":
                raise MetricMissing(f"{_program(table)} received wrong data{at}: validation failed", hint=_WRONG_DATA)
            if column.kind == "value" and not isfinite(float(text)):
                raise MetricMissing(f"{_program(table)} printed {text} as {column.metric}{at}: not a finite number")
    if table.has_sizes:
        sizes = [int(row[0]) for row in table.rows]
        for before, size in pairwise(sizes):
            if size != (2 * before or 1):
                raise MetricMissing(
                    f"the table of {_program(table)} lacks a row: size {size} follows size {before}", hint=_HINT
                )


def _program(table: _Table) -> str:
    return f"osu_{table.benchmark}" if table.benchmark else "the benchmark"


def _metrics(table: _Table) -> Metrics:
    """Return a metric for each column that has values."""
    found = {}
    for place, column in enumerate(table.columns):
        if column.kind != "value":
            continue
        samples = [float(row[place]) * column.factor for row in table.rows]
        sizes = [int(row[0]) for row in table.rows] if table.has_sizes else []
        usual = sizes.index(HISTORY_SIZE) if HISTORY_SIZE in sizes else 0
        value = samples[-1 if column.at_largest else usual]
        found[column.metric] = {"value": value, "unit": column.unit, "samples": samples}
        if sizes:
            found[column.metric]["sizes"] = sizes
    return found


def _with_affixes(tables: Sequence[_Table]) -> Iterator[tuple[str, str, _Table]]:
    """Yield each table with the prefix and suffix of its metrics' names, which are empty for a single table."""
    several = len({table.benchmark for table in tables}) > 1
    datatypes: dict[str, set[str]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for table in tables:
        before = datatypes.setdefault(table.benchmark, set())
        suffix = f"_{table.datatype}" if before - {table.datatype} else ""
        before.add(table.datatype)
        seen[table.benchmark, table.datatype] += 1
        turn = seen[table.benchmark, table.datatype]
        yield f"{table.benchmark}_" if several else "", suffix + (f"_{turn}" if turn > 1 else ""), table


def _startup(text: str) -> Metrics:
    """Return the metrics of osu_init and osu_hello, which do not print a table."""
    metrics: Metrics = {}
    for found in _INIT.finditer(text):
        ranks, *times = (int(group) for group in found.groups())
        metrics["ranks"] = {"value": ranks, "unit": "ranks", "samples": [ranks]}
        for name, milliseconds in zip(("init_min", "init_max", "init_avg"), times, strict=True):
            metrics[name] = {"value": milliseconds, "unit": "ms", "samples": [milliseconds]}
    for found in _HELLO.finditer(text):
        metrics["ranks"] = {"value": int(found[1]), "unit": "ranks", "samples": [int(found[1])]}
    return metrics

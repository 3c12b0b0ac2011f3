"""The table in the text format of OMB 7, the same as JSON, and the metrics document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hidl_workloads.metrics import Metric
from hidl_workloads.omb.benchmark import VERSION, Benchmark, Column, Datatype
from hidl_workloads.omb.options import Options, as_parameters

FIELD_WIDTH = 18  # as set by OMB's configure; without configure, its header sets 20
_HISTORY_SIZE = 8  # bytes; history compares latencies of this size


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure for each column of the benchmark, and what -c and -z add."""

    size: int
    values: Sequence[float]
    errors: int | None = None
    """None: not checked."""
    percentiles: Sequence[float] = ()


@dataclass
class Table:
    """The rows of one datatype, as they come."""

    benchmark: Benchmark
    options: Options
    datatype: str
    rows: list[Row] = field(default_factory=list)


def print_header(table: Table) -> None:
    """The line of the columns' titles."""
    benchmark, options = table.benchmark, table.options
    first, *others = [column for column in benchmark.columns if column.shown(options)]
    line = (
        f"{benchmark.size_title:<{benchmark.size_width}}{first.title:>{first.width}}"
        if benchmark.sizes
        else f"# {first.title}"
    )
    line += "".join(f"{column.title:>{column.width}}" for column in others)
    if options.validation:
        line += f"{'Validation':>{FIELD_WIDTH}}"
    line += "".join(f"{title:>{FIELD_WIDTH}}" for title in percentile_titles(benchmark, options))
    say(line)


def percentile_titles(benchmark: Benchmark, options: Options) -> list[str]:
    """The titles of the columns that -z adds."""
    what = "BW(MB/s)" if benchmark.kind == "bandwidth" else "Lat(us)"
    return [f"P{percentile} Tail {what}" for percentile in options.tail_lat]


def print_row(table: Table, row: Row) -> None:
    """One line of figures; it is kept in the table."""
    table.rows.append(row)
    benchmark = table.benchmark
    shown = [(c, v) for c, v in zip(benchmark.columns, row.values, strict=True) if c.shown(table.options)]
    (column, value), *others = shown
    if benchmark.sizes:
        line = f"{row.size:<{benchmark.size_width}}{value:{column.width}.{column.decimals}f}"
    else:
        line = f"{value:{len(f'# {column.title}')}.{column.decimals}f}"
    line += "".join(f"{figure:{column.width}.{column.decimals}f}" for column, figure in others)
    if row.errors is not None:
        line += f"{benchmark.verdicts[row.errors > 0]:>{FIELD_WIDTH}}"
    line += "".join(f"{figure:{FIELD_WIDTH}.2f}" for figure in row.percentiles)
    say(line)


def percentiles(samples: Sequence[float], wanted: Sequence[int]) -> list[float]:
    """OMB's: of ``n`` samples in ascending order the one at ``n * p / 100`` (rounded down), counted from 1."""
    ordered = sorted(samples)
    return [ordered[max(len(ordered) * percentile // 100, 1) - 1] for percentile in wanted]


def as_json(done: Sequence[Sequence[Table]]) -> dict[str, Any]:
    """The tables of each benchmark, as one document, ``hidl.omb/1``."""
    return {"schema": "hidl.omb/1", "version": VERSION, "benchmarks": [_json_benchmark(tables) for tables in done]}


def _json_benchmark(tables: Sequence[Table]) -> dict[str, Any]:
    benchmark, options = tables[0].benchmark, tables[0].options
    return {
        "name": f"osu_{benchmark.name}",
        "options": as_parameters(options),
        "tables": [
            {"datatype": table.datatype, "rows": [_json_row(table, row) for row in table.rows]} for table in tables
        ],
    }


def _json_row(table: Table, row: Row) -> dict[str, Any]:
    shown = zip(table.benchmark.columns, row.values, strict=True)
    figures: dict[str, Any] = {column.title: value for column, value in shown if column.shown(table.options)}
    if row.errors is not None:
        figures["Validation"] = table.benchmark.verdicts[row.errors > 0]
    figures |= zip(percentile_titles(table.benchmark, table.options), row.percentiles, strict=True)
    return ({"size": row.size} if table.benchmark.sizes else {}) | figures


def as_metrics(tables: Sequence[Table], prefix: str = "") -> list[Metric]:
    """One metric for each column of meaning and each percentile.

    Those of the first datatype have the column's name; those of others end in the datatype's.
    """
    found = []
    for number, table in enumerate(tables):
        suffix = f"_{table.datatype.lower()}" if number else ""
        if not table.rows:
            continue
        for index, column in enumerate(table.benchmark.columns):
            if column.metric and column.shown(table.options):
                figures = [row.values[index] for row in table.rows]
                found.append(_metric(table, column, f"{prefix}{column.metric}{suffix}", figures))
        first = table.benchmark.columns[0]
        for index, percentile in enumerate(table.options.tail_lat):
            figures = [row.percentiles[index] for row in table.rows]
            found.append(_metric(table, first, f"{prefix}{first.metric}_p{percentile}{suffix}", figures))
    return found


def _metric(table: Table, column: Column, name: str, figures: Sequence[float]) -> Metric:
    if not table.benchmark.sizes:
        return Metric(name, figures[0], column.unit, figures)
    sizes = [row.size for row in table.rows]
    if column.at == "large":
        return Metric(name, figures[-1], column.unit, figures, sizes)
    at = sizes.index(_HISTORY_SIZE) if _HISTORY_SIZE in sizes else 0
    return Metric(name, figures[at], column.unit, figures, sizes)


def datatypes(options: Options) -> list[Datatype]:
    """The datatypes that the options name."""
    from mpi4py import MPI

    known = {
        "mpi_char": Datatype("MPI_CHAR", MPI.CHAR, 1, "i1"),
        "mpi_int": Datatype("MPI_INT", MPI.INT, 4, "i4"),
        "mpi_float": Datatype("MPI_FLOAT", MPI.FLOAT, 4, "f4"),
    }
    return [known[name] for name in options.types]


def say(text: str) -> None:
    """Write a line to stdout at once: a table is read while it grows."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

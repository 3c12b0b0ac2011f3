"""Filters of queries, as SQL with separate values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime


@dataclass(frozen=True)
class Filters:
    """Conditions on samples; None: any. ``since`` and ``until`` apply to when the run was planned (inclusive).

    ``host``: the step ran on this host, possibly among others. ``of_ranks``: include values of single ranks.
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
class Condition:
    """Part of a WHERE clause, and the values of its question marks."""

    sql: str
    values: tuple[str | int, ...]


def of_runs(filters: Filters) -> Condition:
    """Return the condition on runs (``r``) that can have such samples."""
    parts = [*_columns(filters), *_times("r", filters)]
    steps = []
    if filters.series is not None:
        steps.append(("t.series = (SELECT id FROM series WHERE digest = ?)", (filters.series,)))
    if filters.host is not None:
        steps.append(("t.host_list IN (SELECT host_list FROM hosts WHERE host = ?)", (filters.host,)))
    for sql, values in steps:
        parts.append((f"r.id IN (SELECT t.run FROM steps t WHERE {sql})", values))
    if filters.metric is not None:
        named = "s.metric IN (SELECT id FROM metrics WHERE name = ?)"
        parts.append((f"EXISTS (SELECT 1 FROM samples s WHERE s.run = r.id AND {named})", (filters.metric,)))
    return _all(parts)


def of_samples(filters: Filters) -> Condition:
    """Return the condition on samples (``s``) and their steps (``t``), beyond that on their runs."""
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


def of_a_series(filters: Filters) -> Condition:
    """Return all conditions but the metric's on samples (``s``), steps (``t``), runs (``r``): one series over time."""
    samples = of_samples(replace(filters, metric=None))
    return _all([*_columns(filters), (samples.sql, samples.values)])


def _columns(filters: Filters) -> list[tuple[str, tuple[str | int, ...]]]:
    asked = ((name, getattr(filters, name)) for name in ("run", "workload", "site", "partition", "stack"))
    return [(f"r.{name} = ?", (value,)) for name, value in asked if value is not None]


def _times(table: str, filters: Filters) -> list[tuple[str, tuple[str | int, ...]]]:
    parts: list[tuple[str, tuple[str | int, ...]]] = []
    if filters.since is not None:
        parts.append((f"{table}.time >= ?", (int(filters.since.timestamp()),)))
    if filters.until is not None:
        parts.append((f"{table}.time <= ?", (int(filters.until.timestamp()),)))
    return parts


def _all(parts: list[tuple[str, tuple[str | int, ...]]]) -> Condition:
    sql = " AND ".join(part for part, _ in parts)
    return Condition(sql or "1", tuple(value for _, values in parts for value in values))

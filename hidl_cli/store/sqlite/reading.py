"""Read rows of the store as samples. What many samples share (run, hosts) is read once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hidl_cli.analysis.samples import Sample

#: A sample's place among those of one metric of one series: time, run, step, rank.
Key = tuple[int, int, int, int]

#: SQLite before 3.32 takes no more values in one statement.
_VALUES = 900

_SAMPLES = """
SELECT s.time, s.run, s.step, s.rank, s.value, m.name, m.unit, m.better, c.digest, t.nodes, t.ranks, t.repetition,
    t.host_list, t.point
FROM samples s JOIN metrics m ON m.id = s.metric JOIN series c ON c.id = s.series
JOIN steps t ON t.run = s.run AND t.step = s.step JOIN runs r ON r.id = s.run WHERE
"""


def read(connection: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[tuple[Key, Sample]]:
    """Return the samples that match ``where`` (a condition with order and limit), each with its key.

    In ``where``, ``s`` is a sample, ``t`` its step, ``r`` its run and ``m`` its metric.
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
    """Return what a run's samples share, with the parameters of a point of its matrix."""
    if point == "{}":
        return run
    changed = json.loads(point)
    return {**run, "parameters": {**run["parameters"], **changed}, "point": changed}


def _by_ids(connection: sqlite3.Connection, sql: str, ids: Iterable[int]) -> Iterator[Any]:
    ordered = sorted(ids)
    for begin in range(0, len(ordered), _VALUES):
        some = ordered[begin : begin + _VALUES]
        yield from connection.execute(f"{sql} IN ({','.join('?' * len(some))})", some)

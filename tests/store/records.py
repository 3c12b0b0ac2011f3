"""Records for the store without run directories, and a process that writes them one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hidl_cli.analysis.samples import Sample
from hidl_cli.store import sqlite
from hidl_cli.store.extract import RunWithSamples
from hidl_cli.store.store import Store


def record(
    name: str = "run1",
    values: Sequence[float] = (1.0,),
    *,
    root: str = "/runs",
    created: str = "2026-01-01T00:00:00+00:00",
    metric: str = "rate",
    series: str = "s1",
    workload: str = "toy",
    site: str = "machine",
    hosts: Sequence[str] = ("node1",),
    tuning: Mapping[str, str] | None = None,
    **more: Any,
) -> RunWithSamples:
    """A run with one step for each value."""
    shared: dict[str, Any] = {
        "run": name,
        "created": created,
        "site": site,
        "partition": "p",
        "workload": workload,
        "parameters": {"batch": 8},
        "stack": "mpi",
        "lock": "l",
        "launcher": "mpiexec",
        "mpi": "mpich 4",
        "tuning": dict(tuning or {}),
        "verdict": "pass",
        **more,
    }
    of_step: dict[str, Any] = {"series": series, "nodes": 1, "ranks": 2, "hosts": tuple(hosts)}
    of_metric: dict[str, Any] = {"metric": metric, "unit": "1/s", "better": "higher"}
    samples = tuple(
        Sample(**shared, **of_step, **of_metric, repetition=number, value=value)
        for number, value in enumerate(values, start=1)
    )
    steps = tuple(range(1, len(values) + 1))
    stored: dict[str, Any] = {"directory": f"{root}/{name}", "reason": "so", "efficiency": None, "metric": metric}
    return RunWithSamples(**shared, **stored, samples=samples, steps=steps)


def main(file: str, prefix: str, count: str, *options: str) -> None:
    """Add ``count`` runs, each in a transaction of its own, and say the name of each that is committed.

    ``without-locks``: as on a file system that SQLite cannot lock. ``stop-within``: stand still in the middle of the
    last transaction, when its pages have been written to the file.
    """
    if "without-locks" in options:
        sqlite.locks_hold = lambda _: False
    store = Store(Path(file))
    for number in range(int(count)):
        name = f"{prefix}-{number}"
        store.add([record(name, range(20), hosts=[f"node{number}"], created="2026-01-01")])
        print(name, flush=True)
    if "stop-within" in options:
        with store.database.writing() as connection:
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("UPDATE samples SET value = value + 1")
            connection.execute("DELETE FROM runs")
            print("within", flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

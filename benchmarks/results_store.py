"""The store of results at 10,000, 100,000 and 1,000,000 samples: how fast it is filled, and how queries grow."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from benchmarks.measure import SMALL, Outcome
from hidl_cli.analysis.samples import Sample
from hidl_cli.store.extract import RunWithSamples
from hidl_cli.store.store import Filters, Store

_SIZES = (2_000, 4_000, 6_000) if SMALL else (10_000, 100_000, 1_000_000)
#: Each run has 2 sizes x 5 repetitions x 2 metrics.
_A_RUN = 20
#: Nightlies: as many workloads and sites as there are, each measured every night.
_WORKLOADS = 25
_SITES = 4


def measure() -> list[Outcome]:
    """Samples a second, seconds a query at the largest size, and how both grow from size to size (linear: 10)."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "results.sqlite")
        rates: dict[int, float] = {}
        queries: dict[str, dict[int, float]] = {}
        done = 0
        for size in _SIZES:
            before = time.perf_counter()
            store.add(_records(done // _A_RUN, size // _A_RUN))
            rates[size] = (size - done) / (time.perf_counter() - before)
            done = size
            for name, query in _queries(store).items():
                queries.setdefault(name, {})[size] = _best(query)
        megabytes = store.file.stat().st_size / 1e6
    smallest, middle, largest = _SIZES
    outcomes = [
        Outcome(
            "1,000 samples added to a million",
            1000 / rates[largest],
            1,
            "s",
            f"{rates[largest]:,.0f} samples/s (first 10,000: {rates[smallest]:,.0f}/s); {megabytes:.0f} MB in all",
        )
    ]
    for name, seconds in queries.items():
        growth = seconds[largest] / seconds[middle]
        figures = ", ".join(f"{size:,}: {1000 * seconds[size]:.1f} ms" for size in _SIZES)
        outcomes.append(Outcome(f"{name}, 1,000,000 samples", seconds[largest], 0.5, "s", figures))
        if name not in (_WHOLE, _ALL):
            outcomes.append(Outcome(f"{name}, growth from 100,000", growth, 8, "", "linear: 10"))
    return outcomes


#: These grow by their nature: the one gives ten times as many samples, the other looks at all, in the index alone.
_WHOLE = "one metric of one series, all nights"
_ALL = "summary of all series"


def _queries(store: Store) -> dict[str, Callable[[], object]]:
    """What ``history``, ``list`` and ``compare`` ask. But for two, what comes back is no more for more samples."""
    newest = store.runs(limit=1)[0]
    sample = next(store.samples(Filters(run=newest.run, metric="rate")))
    at = datetime.fromisoformat(newest.created)
    month = at - timedelta(days=30)
    return {
        "one metric of one series, a month": lambda: _some(
            store.samples(Filters(series=sample.series, metric="rate", since=month))
        ),
        "the last 20 runs with their samples": lambda: [
            list(store.samples(Filters(run=run.run))) for run in store.runs(limit=20)
        ],
        "one workload at one site, a month": lambda: _some(
            store.samples(Filters(workload=newest.workload, site=newest.site, since=month))
        ),
        "one host, its last 20 runs": lambda: store.runs(Filters(host=sample.hosts[0]), limit=20),
        _WHOLE: lambda: _some(store.samples(Filters(series=sample.series, metric="rate"))),
        _ALL: store.series,
    }


def _some(samples: Iterator[Sample]) -> list[Sample]:
    found = list(samples)
    if not found:
        raise SystemExit("a query found nothing: the benchmark is wrong")
    return found


def _best(act: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        before = time.perf_counter()
        act()
        times.append(time.perf_counter() - before)
    return min(times)


def _records(begin: int, end: int) -> Iterator[RunWithSamples]:
    """Every night each workload runs at each site; nights follow nights."""
    noise = random.Random(begin)
    for number in range(begin, end):
        night, which = divmod(number, _WORKLOADS * _SITES)
        workload, site = divmod(which, _SITES)
        created = datetime(2000, 1, 1, tzinfo=timezone.utc) + timedelta(days=night, minutes=which)
        yield _record(
            f"run{number}", created.isoformat(timespec="seconds"), f"workload{workload}", f"site{site}", noise
        )


def _record(run: str, created: str, workload: str, site: str, noise: random.Random) -> RunWithSamples:
    shared: dict[str, Any] = {
        "run": run,
        "created": created,
        "site": site,
        "partition": "p",
        "workload": workload,
        "parameters": {"batch": 64},
        "stack": "mpi",
        "lock": f"lock{noise.randrange(50)}",
        "launcher": "srun",
        "mpi": "mpich 4",
        "tuning": {"MPIR_CVAR_X": "1"},
        "verdict": "pass",
    }
    hosts = tuple(sorted(f"{site}-n{noise.randrange(512):03}" for _ in range(4)))
    samples = [
        Sample(
            **shared,
            series=f"{workload}-{site}-{nodes}",
            nodes=nodes,
            ranks=4 * nodes,
            repetition=repetition,
            metric=metric,
            unit="1/s",
            better="higher",
            value=noise.gauss(100, 2),
            hosts=hosts[:nodes],
        )
        for repetition in range(1, 6)
        for nodes in (1, 4)
        for metric in ("rate", "bandwidth")
    ]
    steps = tuple(1 + place // 2 for place in range(len(samples)))
    judged: dict[str, Any] = {"reason": "", "efficiency": 0.9, "metric": "rate"}
    return RunWithSamples(directory=f"/runs/{run}", **shared, **judged, samples=tuple(samples), steps=steps)

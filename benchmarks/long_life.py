"""Engines of mpi4dask over many connections: what they keep of those, and of client loops that have ended."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.comm import mpi4dask_python
from benchmarks.measure import Outcome, wall

#: After how many memory is looked at: when all is warm, and ten times as many.
LOOPS, CONNECTIONS = (500, 5000), (10_000, 100_000)
RANKS = Path(__file__).with_name("long_life_ranks.py")


def measure() -> list[Outcome]:
    """One rank listens while the other connects: from one event loop after another, and again and again from one."""
    with tempfile.TemporaryDirectory() as directory:
        python, result = mpi4dask_python(Path(directory)), Path(directory) / "figures.json"

        def figures(kind: str, counts: tuple[int, int]) -> tuple[dict[str, int], dict[str, int]]:
            words = [str(RANKS), str(result), kind, *map(str, counts)]
            wall([str(python.parent / "mpiexec"), "-n", "2", str(python), *words])
            few, many = json.loads(result.read_text())
            return few, many

        of_loops, of_connections = figures("loops", LOOPS), figures("connections", CONNECTIONS)
    _, many = of_loops
    few, last = of_connections
    kept = sum(last[name] - few[name] for name in ("files", "threads", "peers"))
    return [
        _memory("client loops", LOOPS, of_loops),
        Outcome("engines that it knows then", many["peers"], 2, "", ""),
        _memory("connections of one", CONNECTIONS, of_connections),
        Outcome("files, threads and engines more that it has then", kept, 0, "", ""),
    ]


def _memory(what: str, counts: tuple[int, int], figures: tuple[dict[str, int], dict[str, int]]) -> Outcome:
    (few, many), (before, after) = counts, figures
    listening, connecting = (after[side] / before[side] for side in ("listening", "connecting"))
    details = f"{after['listening']:,} bytes against {before['listening']:,}; of the client: {connecting:.2f} times"
    return Outcome(f"memory of a listener after {many:,} {what} / after {few:,}", listening, 1.05, "", details)

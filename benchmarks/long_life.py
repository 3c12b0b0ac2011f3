"""Engines of mpi4dask over many connections: what they keep of client loops that have ended."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.comm import mpi4dask_python
from benchmarks.measure import Outcome, wall

#: Client loops after which memory is looked at: when all is warm, and ten times as many.
FEW, MANY = 500, 5000
RANKS = Path(__file__).with_name("long_life_ranks.py")


def measure() -> list[Outcome]:
    """One rank listens while the other connects from one event loop after another."""
    with tempfile.TemporaryDirectory() as directory:
        python, result = mpi4dask_python(Path(directory)), Path(directory) / "figures.json"
        wall([str(python.parent / "mpiexec"), "-n", "2", str(python), str(RANKS), str(result), str(FEW), str(MANY)])
        few, many = json.loads(result.read_text())
    memory = many["listening"] / few["listening"]
    details = f"{many['listening']:,} bytes against {few['listening']:,}"
    connecting = many["connecting"] / few["connecting"]
    return [
        Outcome(f"memory of a listener after {MANY} client loops / after {FEW}", memory, 1.05, "", details),
        Outcome("engines that it knows then", many["peers"], 2, "", f"memory of the client: {connecting:.2f} times"),
    ]

"""mpi:// of mpi4dask against tcp:// of distributed: latency by size, oversubscribed, in a crowd, and idle.

Latency by size against ucx:// of distributed-ucxx too, where the Python of the ranks has it.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import HIDL, Outcome, output, private_environment, wall

#: Least speed-up over tcp:// with two ranks on a core each.
SPEED_UP = {
    "bytes 1 B": 6.0,
    "bytes 1 KB": 6.0,
    "bytes 64 KB": 4.0,
    "NumPy 64 KB": 2.2,
    "NumPy 2 MB": 2.5,
    "NumPy 16 MB": 3.0,
    "NumPy 64 MB": 3.0,
}
RANKS = Path(__file__).with_name("comm_ranks.py")


def measure() -> list[Outcome]:
    """Two ranks pinned, four ranks on two cores, 200 idle connections and a burst, and ten idle connections."""
    with tempfile.TemporaryDirectory() as directory:
        python = mpi4dask_python(Path(directory))
        pinned = _figures(python, 2, "messages")
        crowd = _figures(python, 2, "crowd")
        many = _figures(python, 2 * len(os.sched_getaffinity(0)), "oversubscribed")
        idle = _figures(python, 2, "idle")["idle CPU"]
    outcomes = [_ratio(name, figure, 1 / SPEED_UP[name]) for name, figure in pinned.items()]
    outcomes += [_ratio(name, figure, 1.0, "ucx") for name, figure in pinned.items() if "ucx" in figure]
    outcomes += [_ratio(name, figure, 1.0) for name, figure in crowd.items()]
    outcomes += [_ratio(f"{name}, two ranks per core", figure, 1.0) for name, figure in many.items()]
    share = idle["mpi"] * 100
    return [*outcomes, Outcome("idle CPU of mpi://", share, 0.3, "%", f"tcp:// {idle['tcp'] * 100:.2f} %")]


def _ratio(name: str, figure: dict[str, float], bound: float, other: str = "tcp") -> Outcome:
    mpi, theirs = figure["mpi"], figure[other]
    details = f"{mpi * 1e6:.1f} us against {theirs * 1e6:.1f} us: {theirs / mpi:.2f} times as fast"
    return Outcome(f"mpi:// / {other}://, {name}", mpi / theirs, bound, "", details)


def mpi4dask_python(directory: Path) -> Path:
    """The Python of a fresh stack mpi4dask, or of `MPI4DASK_BENCHMARK_PYTHON`."""
    given = os.environ.get("MPI4DASK_BENCHMARK_PYTHON")
    if given:
        return Path(given)
    installed = json.loads(output([HIDL, "install", "mpi4dask", "--json"], private_environment(directory)))
    return Path(installed["installations"][0]["prefix"]) / "bin" / "python"


def _figures(python: Path, ranks: int, what: str) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "figures.json"
        wall([str(python.parent / "mpiexec"), "-n", str(ranks), str(python), str(RANKS), str(result), what])
        return json.loads(result.read_text())

"""mpi:// of mpi4dask against tcp:// of distributed: latency by size and type, oversubscribed, in a crowd, and idle.

Latency by size against ucx:// of distributed-ucxx too, where the Python of the ranks has it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    "echoed bytes 64 KB": 1.2,
    "echoed bytes 2 MB": 1.2,
    "echoed bytes 8 MB": 1.2,
}
#: Maximum share of tcp's time for any type and size, quiet and beside busy programs.
OF_TCP = 1.05
RANKS = Path(__file__).with_name("comm_ranks.py")


def measure() -> list[Outcome]:
    """Two ranks pinned, four ranks on two cores, 200 idle connections and a burst, ten idle connections, all types.

    The types are measured a second time beside as many busy programs as there are cores.
    """
    with tempfile.TemporaryDirectory() as directory:
        python = mpi4dask_python(Path(directory))
        pinned = _figures(python, 2, "messages")
        crowd = _figures(python, 2, "crowd")
        many = _figures(python, 2 * len(os.sched_getaffinity(0)), "oversubscribed")
        idle = _figures(python, 2, "idle")["idle CPU"]
        types = _figures(python, 2, "types")
        with _busy_programs():
            beside = _figures(python, 2, "types")
    outcomes = [_ratio(name, figure, 1 / SPEED_UP[name]) for name, figure in pinned.items()]
    outcomes += [_ratio(name, figure, 1.0, "ucx") for name, figure in pinned.items() if "ucx" in figure]
    outcomes += [_ratio(name, figure, 1.0) for name, figure in crowd.items()]
    outcomes += [_ratio(f"{name}, two ranks per core", figure, 1.0) for name, figure in many.items()]
    outcomes += [*_by_type("", types), *_by_type(" beside busy programs", beside)]
    (mpi,), (tcp,) = idle["mpi"], idle["tcp"]
    return [*outcomes, Outcome("idle CPU of mpi://", mpi * 100, 0.3, "%", f"tcp:// {tcp * 100:.2f} %")]


def _ratio(name: str, figure: dict[str, list[float]], bound: float, other: str = "tcp") -> Outcome:
    mpi, theirs = statistics.median(figure["mpi"]), statistics.median(figure[other])
    details = f"{mpi * 1e6:.1f} us against {theirs * 1e6:.1f} us: {theirs / mpi:.2f} times as fast"
    return Outcome(f"mpi:// / {other}://, {name}", mpi / theirs, bound, "", details)


def _by_type(where: str, figures: dict[str, dict[str, list[float]]]) -> Iterator[Outcome]:
    """The size of each type at which mpi:// takes most of tcp's time, by the median of the rounds' ratios.

    The details have the range of the ratios: with 7 rounds, it is the 98 % interval of the median.
    """
    shares: dict[str, dict[str, list[float]]] = {}
    for name, figure in figures.items():
        kind, number, unit = name.rsplit(" ", 2)
        ratios = sorted(mpi / tcp for mpi, tcp in zip(figure["mpi"], figure["tcp"], strict=True))
        shares.setdefault(kind, {})[f"{number} {unit}"] = ratios
    for kind, by_size in shares.items():
        medians = {size: statistics.median(ratios) for size, ratios in by_size.items()}
        worst = max(medians, key=lambda size: medians[size])
        told = ", ".join(
            f"{size} {medians[size]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, n={len(ratios)})"
            for size, ratios in by_size.items()
        )
        yield Outcome(f"mpi:// / tcp://, {kind}{where}, worst: {worst}", medians[worst], OF_TCP, "", told)


@contextmanager
def _busy_programs() -> Iterator[None]:
    """As many programs that compute as there are cores."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


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

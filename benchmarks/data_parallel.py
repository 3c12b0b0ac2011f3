"""Averaging gradients on two pinned ranks: our way against Horovod on MPI and PyTorch's DDP on gloo, in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import stacks
from benchmarks.measure import Outcome

_REPOSITORY = Path(__file__).parent.parent
_RANKS = 2
_ROUNDS = 3
_LABELS = {
    "4000": "4 KB",
    "1000000": "1 MB",
    "100000000": "100 MB",
    "step": "ResNet-50, 64 pixels",
    "small": "80 parameters of 16 x 16 and less",
}
_IMAGES = 8 * _RANKS


def measure() -> list[Outcome]:
    """Our time for each size, and for a step of ResNet-50, as a part of the others'; and ResNet-50's scaling."""
    return [*contenders(), *scaling()]


def contenders() -> list[Outcome]:
    """The time of our way over that of each other one: the median of the rounds' ratios."""
    prefix, others = _stack()
    rounds = [
        {name: {**_ranks(prefix, name), "small": _ranks(prefix, f"small:{name}")} for name in ("mpi4py", *others)}
        for _ in range(_ROUNDS)
    ]
    outcomes = []
    for other in others:
        for key, label in _LABELS.items():
            ratio = statistics.median(each["mpi4py"][key] / each[other][key] for each in rounds)
            figures = (f"{name} {_figure(key, [each[name][key] for each in rounds])}" for name in ("mpi4py", other))
            outcomes.append(Outcome(f"{label}: our time / {other}'s", ratio, 1, "", ", ".join(figures)))
    return outcomes


def scaling() -> list[Outcome]:
    """What two ranks that train together miss of what two that train alone at the same time reach together."""
    prefix, _ = _stack()
    rates = _ranks(prefix, "scaling")
    efficiency, parts = {}, []
    for way, words in (("together", "efficiency"), ("in_step", "with a barrier before each step, no gradients")):
        ratios = sorted(rate / alone for rate, alone in zip(rates[way], rates["alone"], strict=True))
        efficiency[way] = statistics.median(ratios)
        parts.append(f"{words} {efficiency[way]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    both, alone = (statistics.median(rates[name]) for name in ("together", "alone"))
    details = f"{both:.2f} of {alone:.2f} images/s: {', '.join(parts)}"
    return [Outcome("ResNet-50, 224 pixels, 1 -> 2 ranks: lost", 1 - efficiency["together"], 0.05, "", details)]


def _stack() -> tuple[Path, tuple[str, ...]]:
    """The prefix of stack horovod and both other ways, or that of pytorch and gloo alone, where it is not installed."""
    if (prefix := stacks.installed("horovod")) is not None:
        return prefix, ("horovod", "gloo")
    return stacks.install("pytorch"), ("gloo",)


def _ranks(prefix: Path, what: str) -> Any:
    """Run the ranks' program, one thread and one core each, and return what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "measured.json"
        start = [prefix / "bin" / "mpiexec", "-bind-to", "core", "-n", str(_RANKS), prefix / "bin" / "python"]
        environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
        command = [*map(str, start), "-m", "benchmarks.data_parallel_ranks", what, str(file)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{what} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        print(f"{what}: {file.read_text()}", file=sys.stderr)
        return json.loads(file.read_text())


def _figure(key: str, seconds: list[float]) -> str:
    median = statistics.median(seconds)
    if key == "small":
        return f"{1e3 * median:.2f} ms"
    return f"{_IMAGES / median:.1f} images/s" if key == "step" else f"{int(key) / median / 1e9:.3g} GB/s"

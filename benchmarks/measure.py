"""Measuring commands against each other."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Whether to run at a small size, as the tests do: the figures mean nothing then.
SMALL = os.environ.get("HIDL_BENCHMARKS_SMALL") == "1"
#: The hidl of the very environment that runs the benchmarks.
HIDL = str(Path(sys.executable).parent / "hidl")


@dataclass(frozen=True)
class Outcome:
    """One figure and the bound that it is to keep; ``unit`` is empty for a ratio."""

    name: str
    value: float
    bound: float
    unit: str
    details: str = ""

    @property
    def held(self) -> bool:
        """Is the figure within its bound?"""
        return self.value <= self.bound


def wall(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> float:
    """Wall-clock seconds of one run of ``command`` as a whole process; it must end with status 0."""
    before = time.perf_counter()
    done = subprocess.run(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    seconds = time.perf_counter() - before
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout.decode()}{done.stderr.decode()}")
    return seconds


def cpu(command: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """Seconds of processor time of one run of ``command`` with all its processes; it must end with status 0."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall(command, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """What ``command`` prints; it must end with status 0."""
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def in_turn(one: Callable[[], float], other: Callable[[], float], *, runs: int) -> tuple[list[float], list[float]]:
    """Measure A B A B ..., after one run of each that is not counted."""
    one(), other()
    pairs = [(one(), other()) for _ in range(1 if SMALL else runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios pair by pair: drift of the machine's speed cancels."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def median_difference(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median of the differences pair by pair."""
    return statistics.median(one - other for one, other in zip(ones, others, strict=True))


def private_environment(root: Path) -> dict[str, str]:
    """The environment with hidl's directories under ``root``; uv's cache is the user's own."""
    directories = {f"XDG_{kind}_HOME": str(root / kind.lower()) for kind in ("CONFIG", "STATE", "DATA")}
    uv_cache = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")
    return {**os.environ, **directories, "XDG_CACHE_HOME": str(root / "cache"), "UV_CACHE_DIR": uv_cache}

"""``hidl install mpi`` against what it cannot do without: uv for the same lock, and the same verification."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import HIDL, Outcome, cpu, in_turn, median_ratio, private_environment, wall


def measure() -> list[Outcome]:
    """The ratio with a warm cache, and the time of "nothing to do"."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root)
        wall([HIDL, "install", "mpi"], env=env)  # fills the caches
        installations = root / "data" / "hidl" / "installations"
        prefix = (installations / "local" / "mpi" / "current").resolve()
        lock = root / "lock.txt"
        shutil.copy(prefix / "lock.txt", lock)
        shutil.rmtree(installations)
        planned = subprocess.run(
            [HIDL, "install", "mpi", "--dry-run", "--json"], env=env, capture_output=True, check=True
        )
        steps = json.loads(planned.stdout)["plans"][0]["steps"]

        def hidl() -> float:
            shutil.rmtree(installations, ignore_errors=True)
            return wall([HIDL, "install", "mpi"], env=env)

        def by_hand() -> float:
            shutil.rmtree(installations, ignore_errors=True)
            prefix.mkdir(parents=True)
            shutil.copy(lock, prefix / "lock.txt")
            return sum(_by_hand(step, env) for step in steps)

        ones, others = in_turn(hidl, by_hand, runs=9)
        hidl()
        again = [wall([HIDL, "install", "mpi"], env=env) for _ in range(7)]
        busy = [cpu([HIDL, "install", "mpi"], env=env) for _ in range(7)]
    details = f"{statistics.median(ones):.2f} s against {statistics.median(others):.2f} s"
    return [
        Outcome("hidl install mpi / by hand", median_ratio(ones, others), 1.3, "", details),
        Outcome("hidl install mpi, nothing to do", min(again), 0.3, "s", "the fastest of 7"),
        Outcome("the same, processor time", min(busy), 0.3, "s", "the least of 7"),
    ]


def _by_hand(step: dict[str, Any], env: dict[str, str]) -> float:
    """Run one step of the plan as a person would."""
    clean = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return wall(step["argv"], env=clean | step["variables"])

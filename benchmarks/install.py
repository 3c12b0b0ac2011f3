"""``hidl install mpi`` against what it cannot do without: uv for the same lock, and the same verification.

``hidl stack verify`` of a large stack against ``sha256sum`` over the same files, as many at a time as there are cores.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import stacks
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
    large = stacks.install("hyparflow")
    verified, summed = in_turn(
        lambda: wall([HIDL, "stack", "verify", "hyparflow"]), lambda: wall(_sha256sum(large)), runs=5
    )
    told = f"{statistics.median(verified):.2f} s against {statistics.median(summed):.2f} s, the files in memory"
    details = f"{statistics.median(ones):.2f} s against {statistics.median(others):.2f} s"
    return [
        Outcome("hidl install mpi / by hand", median_ratio(ones, others), 1.3, "", details),
        Outcome("hidl install mpi, nothing to do", min(again), 0.3, "s", "the fastest of 7"),
        Outcome("the same, processor time", min(busy), 0.3, "s", "the least of 7"),
        Outcome("hidl stack verify hyparflow / sha256sum", median_ratio(verified, summed), 1 / 0.7, "", told),
    ]


def _sha256sum(prefix: Path) -> list[str]:
    jobs = str(len(os.sched_getaffinity(0)))
    return ["sh", "-c", 'find "$0" -type f -print0 | xargs -0 -P "$1" -n 64 sha256sum', str(prefix), jobs]


def _by_hand(step: dict[str, Any], env: dict[str, str]) -> float:
    """Run one step of the plan as a person would."""
    clean = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return wall(step["argv"], env=clean | step["variables"])

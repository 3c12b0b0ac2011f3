"""``hidl install mpi`` against what it cannot do without: uv for the same lock, and the same verification."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import HIDL, Outcome, in_turn, median_ratio, private_environment, wall


def measure() -> list[Outcome]:
    """The ratio with a warm cache, and the time of "nothing to do"."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        env = private_environment(root)
        plan = _installed(env)
        bare = root / "bare"

        def hidl() -> float:
            shutil.rmtree(root / "data")
            return wall([HIDL, "install", "mpi"], env=env)

        def by_hand() -> float:
            shutil.rmtree(bare, ignore_errors=True)
            return sum(wall(command, env=env | {"HIDL_WORLD_SIZE": "2"}) for command in _by_hand(bare, plan, root))

        ones, others = in_turn(hidl, by_hand, runs=9)
        again = [wall([HIDL, "install", "mpi"], env=env) for _ in range(7)]
    details = f"{statistics.median(ones):.2f} s against {statistics.median(others):.2f} s"
    return [
        Outcome("hidl install mpi / by hand", median_ratio(ones, others), 1.3, "", details),
        Outcome("hidl install mpi, nothing to do", statistics.median(again), 0.5, "s"),
    ]

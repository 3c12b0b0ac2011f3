"""An averager of gradients over a hundred thousand steps, and many made again: what a rank keeps of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks import stacks
from benchmarks.measure import Outcome, wall

#: Steps after which memory is looked at: when all is warm, and ten times as many; then optimizers made again.
FEW, MANY, REBUILT = 10_000, 100_000, 100
RANKS = Path(__file__).with_name("long_training_ranks.py")


def measure() -> list[Outcome]:
    """A small network on two ranks."""
    prefix = stacks.install("pytorch")
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "figures.json"
        words = [str(RANKS), str(result), str(FEW), str(MANY), str(REBUILT)]
        wall([str(prefix / "bin" / "mpiexec"), "-n", "2", str(prefix / "bin" / "python"), *words])
        few, many, rebuilt = json.loads(result.read_text())
    memory = many["memory"] / few["memory"]
    again = rebuilt["memory"] / many["memory"]
    kept = sum(rebuilt[name] - few[name] for name in ("files", "threads"))
    return [
        Outcome(
            f"memory of a rank after {MANY:,} steps / after {FEW:,}",
            memory,
            1.02,
            "",
            f"{many['memory']:,} bytes against {few['memory']:,}; {1e6 * many['seconds']:.0f} us a step, "
            f"{1e6 * few['seconds']:.0f} us in the first {FEW:,}",
        ),
        Outcome(f"its memory after {REBUILT} optimizers more / before them", again, 1.05, ""),
        Outcome("files and threads that it keeps of these", kept, 0, ""),
    ]

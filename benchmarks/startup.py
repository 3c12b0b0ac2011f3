"""How fast ``hidl`` starts: against a bare Python, and against ``reframe --version``."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import HIDL, Outcome, in_turn, median_ratio, wall


def measure() -> list[Outcome]:
    """Wall time of ``hidl --version`` and ``hidl --help``."""
    with tempfile.TemporaryDirectory() as directory:
        reframe = _reframe(Path(directory))
        version, other = in_turn(lambda: wall([HIDL, "--version"]), lambda: wall([reframe, "--version"]), runs=15)
    helped, bare = in_turn(lambda: wall([HIDL, "--help"]), lambda: wall([sys.executable, "-c", ""]), runs=9)
    details = f"reframe --version {statistics.median(other) * 1e3:.0f} ms"
    return [
        Outcome("hidl --version", statistics.median(version) * 1e3, 60, "ms"),
        Outcome("hidl --version / reframe --version", median_ratio(version, other), 1 / 3, "", details),
        Outcome(
            "hidl --help",
            statistics.median(helped) * 1e3,
            400,
            "ms",
            f"python -c '' {statistics.median(bare) * 1e3:.0f} ms",
        ),
    ]


def _reframe(directory: Path) -> str:
    """Install ReFrame beside hidl, for this comparison alone."""
    wall([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(directory / "venv")])
    python = str(directory / "venv" / "bin" / "python")
    wall([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "reframe-hpc"])
    return str(directory / "venv" / "bin" / "reframe")

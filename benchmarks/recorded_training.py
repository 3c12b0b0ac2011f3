"""Overhead of the recorder mpitraffic in training: ResNet-50 on two ranks, recorded and not, in turn."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import stacks
from benchmarks.measure import Outcome
from benchmarks.resnet50 import IMAGE_SIZE, PAIRS, RANKS, REPOSITORY, STEPS, ratio, step_time


def measure() -> list[Outcome]:
    """Return the upper end of the interval of a step's time with the recorder over that without."""
    prefix = stacks.install("pytorch")
    with tempfile.TemporaryDirectory() as name:
        recorder = Path(name) / "recorder.so"
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "libs" / "mpitraffic")}
        build = [sys.executable, "-m", "mpitraffic", "build", recorder, "--mpicc", prefix / "bin" / "mpicc"]
        subprocess.run(build, env=env, stdout=subprocess.DEVNULL, check=True)

        def recorded(place: Path) -> float:
            profile = place / "profile"
            seconds = step_time(prefix, place, preload=recorder, variables={"MPITRAFFIC_DIRECTORY": str(profile)})
            if len(list(profile.glob("*.mpitraffic"))) != RANKS:
                raise RuntimeError(f"nothing was recorded in {profile}")
            return seconds

        low, mean, high = ratio(lambda place: step_time(prefix, place), recorded, Path(name))
    title = f"ResNet-50 step at {IMAGE_SIZE} pixels, recorded / not, upper end of the 95 % interval"
    return [Outcome(title, high, 1.01, "", f"{mean:.4f} ({low:.4f} to {high:.4f}), {PAIRS} pairs of {STEPS} steps")]

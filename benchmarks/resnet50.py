"""Steps of ResNet-50 on two ranks, in launches that are compared in turn."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.measure import SMALL
from hidl_workloads import intervals

REPOSITORY = Path(__file__).parents[1]
RANKS = 2
PAIRS, IMAGE_SIZE, BATCH, STEPS = (2, 32, 2, 2) if SMALL else (12, 64, 8, 30)


def step_time(
    prefix: Path, place: Path, *options: str, preload: Path | None = None, variables: Mapping[str, str] | None = None
) -> float:
    """Return the median seconds of a step of one launch.

    Args:
        prefix: Installation of a stack with PyTorch.
        place: New directory of the launch.
        options: Further options of the program.
        preload: Library that is loaded into the ranks.
        variables: Further environment variables.
    """
    place.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "HIDL_WORLD_SIZE": str(RANKS),
        "HIDL_METRICS": str(place / "metrics.json"),
        **(variables or {}),
    }
    sizes = (f"--image_size={IMAGE_SIZE}", f"--batch={BATCH}", f"--steps={STEPS}", "--warmup=2")
    command = [
        *(prefix / "bin" / "mpiexec", "-n", str(RANKS), "-bind-to", "core"),
        *(("env", f"LD_PRELOAD={preload}") if preload else ()),
        *(prefix / "bin" / "python", "-m", "hidl_workloads.world", "hidl_workloads.resnet50", "--framework=torch"),
        *(*sizes, *options),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"resnet50 ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    document = json.loads((place / "metrics.json").read_text())
    return median(next(each["samples"] for each in document["metrics"] if each["name"] == "step_time"))


def ratio(base: Callable[[Path], float], other: Callable[[Path], float], root: Path) -> tuple[float, float, float]:
    """Return the ratio of the seconds of ``other`` to those of ``base``: the ends of its 95 % interval around the mean.

    Each is measured once in a pair; every second pair begins with the other one.
    """
    logs = []
    for pair in range(PAIRS):
        names = ("base", "other") if pair % 2 else ("other", "base")
        seconds = {name: {"base": base, "other": other}[name](root / f"{pair}-{name}") for name in names}
        print(f"pair {pair + 1}: {seconds['base']:.5f} s, compared {seconds['other']:.5f} s", file=sys.stderr)
        logs.append(math.log(seconds["other"] / seconds["base"]))
    middle, half = intervals.mean(logs), intervals.half_width(logs)
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)

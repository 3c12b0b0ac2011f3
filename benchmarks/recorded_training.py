"""Overhead of the recorder mpitraffic in training: ResNet-50 on two ranks, recorded and not, in turn."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import stacks
from benchmarks.measure import SMALL, Outcome
from hidl_workloads import intervals

_REPOSITORY = Path(__file__).parents[1]
_RANKS = 2
_PAIRS, _IMAGE_SIZE, _BATCH, _STEPS = (2, 32, 2, 2) if SMALL else (12, 64, 8, 30)


def measure() -> list[Outcome]:
    """Return the upper end of the interval of a step's time with the recorder over that without."""
    prefix = stacks.install("pytorch")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        recorder = root / "recorder.so"
        env = {**os.environ, "PYTHONPATH": str(_REPOSITORY / "libs" / "mpitraffic")}
        build = [sys.executable, "-m", "mpitraffic", "build", recorder, "--mpicc", prefix / "bin" / "mpicc"]
        subprocess.run(build, env=env, stdout=subprocess.DEVNULL, check=True)
        ratios = [_ratio(prefix, recorder, root, pair) for pair in range(_PAIRS)]
    logs = [math.log(ratio) for ratio in ratios]
    middle, half = intervals.mean(logs), intervals.half_width(logs)
    low, mean, high = (math.exp(each) for each in (middle - half, middle, middle + half))
    title = f"ResNet-50 step at {_IMAGE_SIZE} pixels, recorded / not, upper end of the 95 % interval"
    details = f"{mean:.4f} ({low:.4f} to {high:.4f}), {_PAIRS} pairs of {_STEPS} steps"
    return [Outcome(title, high, 1.01, "", details)]


def _ratio(prefix: Path, recorder: Path, root: Path, pair: int) -> float:
    """Return the recorded step time over the other one; every second pair begins with the recorded one."""
    seconds = {}
    for recorded in (False, True) if pair % 2 else (True, False):
        seconds[recorded] = _step_time(prefix, recorder if recorded else None, root / f"{pair}-{recorded}")
    print(f"pair {pair + 1}: {seconds[False]:.5f} s, recorded {seconds[True]:.5f} s", file=sys.stderr)
    return seconds[True] / seconds[False]


def _step_time(prefix: Path, recorder: Path | None, place: Path) -> float:
    place.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(_REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "HIDL_WORLD_SIZE": str(_RANKS),
        "HIDL_METRICS": str(place / "metrics.json"),
        "MPITRAFFIC_DIRECTORY": str(place / "profile"),
    }
    sizes = (f"--image_size={_IMAGE_SIZE}", f"--batch={_BATCH}", f"--steps={_STEPS}", "--warmup=2")
    command = [
        *(prefix / "bin" / "mpiexec", "-n", str(_RANKS), "-bind-to", "core"),
        *(("env", f"LD_PRELOAD={recorder}") if recorder else ()),
        *(prefix / "bin" / "python", "-m", "hidl_workloads.world", "hidl_workloads.resnet50", "--framework=torch"),
        *sizes,
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"resnet50 ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if recorder and len(list((place / "profile").glob("*.mpitraffic"))) != _RANKS:
        raise RuntimeError(f"nothing was recorded: {done.stderr}")
    document = json.loads((place / "metrics.json").read_text())
    return median(next(each["samples"] for each in document["metrics"] if each["name"] == "step_time"))

"""Training on archives against synthetic images: ResNet-50 on two ranks, in turn."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import stacks
from benchmarks.measure import SMALL, Outcome
from benchmarks.resnet50 import IMAGE_SIZE, PAIRS, STEPS, ratio, step_time
from hidl_workloads import archives

_SAMPLES = 50 if SMALL else 4096
_SHARE = 0.95  # of the synthetic images per second


def measure() -> list[Outcome]:
    """Return the upper end of the interval of a step's time on archives over that on synthetic images."""
    prefix = stacks.install("pytorch")
    with tempfile.TemporaryDirectory() as name:
        root, data = Path(name), Path(name) / "data"
        archives.make_images(data, samples=_SAMPLES, side=IMAGE_SIZE * 5 // 4, classes=10, shards=4, seed=0)
        low, mean, high = ratio(
            lambda place: step_time(prefix, place),
            lambda place: step_time(prefix, place, f"--data={data}"),
            root,
        )
        waits = [_input_wait(file) for file in root.glob("*-other/metrics.json")]
    title = f"ResNet-50 step at {IMAGE_SIZE} pixels, archives / synthetic, upper end of the 95 % interval"
    details = f"{mean:.4f} ({low:.4f} to {high:.4f}), {PAIRS} pairs of {STEPS} steps; input_wait {median(waits):.2%}"
    return [Outcome(title, high, 1 / _SHARE, "", details)]


def _input_wait(file: Path) -> float:
    metrics = json.loads(file.read_text())["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "input_wait"))

"""The first step of ResNet-1001 (version 2, batch 8): hyparflow on 4 ranks, then one process in two ways.

What takes so long is tracing and compiling thousands of operations. The two ways are those of
``benchmarks.first_step_alone``: Keras as people use it, and the leanest program that does the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import stacks
from benchmarks.measure import Outcome

_REPOSITORY = Path(__file__).parent.parent
_PARTITIONS, _DEPTH, _BATCH, _MICRO_BATCHES = 4, 1001, 8, 4


def measure() -> list[Outcome]:
    """Time and memory as parts of those of one process."""
    prefix = stacks.install("hyparflow")
    ours = _hyparflow()
    outcomes = []
    for way, name in (("lean", "one function of TensorFlow's"), ("keras", "Keras'")):
        alone = _alone(prefix, way)
        print(f"hyparflow: {ours}, {way}: {alone}", file=sys.stderr)
        for figure, words, unit, bound in (
            ("seconds", "time", "s", 1 / 3),
            ("mebibytes", "greatest memory of a rank", "MiB", 0.5),
        ):
            outcomes.append(
                Outcome(
                    f"ResNet-{_DEPTH}, first step in {_PARTITIONS} partitions: {words} / {name}",
                    ours[figure] / alone[figure],
                    bound,
                    "",
                    f"{ours[figure]:.1f} {unit}, {alone[figure]:.1f} {unit}",
                )
            )
    return outcomes


def _hyparflow() -> dict[str, float]:
    asked = {"mode": "model", "depth": _DEPTH, "version": 2, "batch": _BATCH, "micro_batches": _MICRO_BATCHES}
    words = [
        word for name, value in (asked | {"warmup": 1, "steps": 1}).items() for word in ("--set", f"{name}={value}")
    ]
    told = stacks.hidl("run", "hyparflow-resnet", "--json", "--ranks-per-node", str(_PARTITIONS), *words)
    metrics = told["steps"][0]["metrics"]
    return {"seconds": metrics["first_step_time"]["value"], "mebibytes": max(metrics["peak_memory"]["samples"])}


def _alone(prefix: Path, way: str) -> dict[str, float]:
    """See ``benchmarks.first_step_alone``."""
    python = str(prefix / "bin" / "python")
    command = [python, "-m", "benchmarks.first_step_alone", way, str(_DEPTH), str(_BATCH)]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told

"""The first step of ResNet-1001 (version 2, batch 8): hyparflow on 4 ranks, then Keras in one process.

What takes so long is tracing and compiling thousands of operations; Keras' process may use all cores.
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
    """Time and memory as parts of Keras'."""
    prefix = stacks.install("hyparflow")
    ours, theirs = _hyparflow(), _keras(prefix)
    print(f"hyparflow: {ours}, Keras: {theirs}", file=sys.stderr)
    seconds, memory = (tuple(each[figure] for each in (ours, theirs)) for figure in ("seconds", "mebibytes"))
    return [
        Outcome(
            f"ResNet-{_DEPTH}: first step in {_PARTITIONS} partitions / Keras'",
            seconds[0] / seconds[1],
            1 / 3,
            "",
            "{:.1f} s, {:.1f} s".format(*seconds),
        ),
        Outcome(
            f"ResNet-{_DEPTH}: greatest memory of a rank / Keras'",
            memory[0] / memory[1],
            0.5,
            "",
            "{:.0f} MiB, {:.0f} MiB".format(*memory),
        ),
    ]


def _hyparflow() -> dict[str, float]:
    asked = {"mode": "model", "depth": _DEPTH, "version": 2, "batch": _BATCH, "micro_batches": _MICRO_BATCHES}
    words = [
        word for name, value in (asked | {"warmup": 1, "steps": 1}).items() for word in ("--set", f"{name}={value}")
    ]
    told = stacks.hidl("run", "hyparflow-resnet", "--json", "--ranks-per-node", str(_PARTITIONS), *words)
    metrics = told["steps"][0]["metrics"]
    return {"seconds": metrics["first_step_time"]["value"], "mebibytes": max(metrics["peak_memory"]["samples"])}


def _keras(prefix: Path) -> dict[str, float]:
    """See ``benchmarks.first_step_keras``."""
    command = [str(prefix / "bin" / "python"), "-m", "benchmarks.first_step_keras", str(_DEPTH), str(_BATCH)]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told

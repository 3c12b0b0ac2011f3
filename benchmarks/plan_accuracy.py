"""What ``hyparflow plan`` predicts for a step of thirteen models, against the steps of a training by that plan.

Each model is saved, planned by the command that users type, and trained by ``model.fit`` on two ranks with a core and a
thread each; the plan is made on one such core. ``--refine 0`` leaves out the timing of the stages that were cut.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import stacks
from benchmarks.measure import Outcome

_REPOSITORY = Path(__file__).parent.parent
_BATCH, _MICRO_BATCHES = 32, 4
#: Application -> pixels of a side; of others words or numbers: see ``benchmarks.plan_accuracy_ranks``.
_MODELS = {
    "ResNet50": 64,
    "ResNet50V2": 64,
    "VGG16": 64,
    "DenseNet121": 64,
    "InceptionV3": 96,
    "Xception": 96,
    "MobileNetV2": 96,
    "EfficientNetB0": 64,
    "NASNetMobile": 64,
    "ConvNeXtTiny": 64,
    "MLP": 1024,
    "LSTM": 64,
    "GPT": 128,
}


def measure() -> list[Outcome]:
    """The median error over the models."""
    prefix = stacks.install("hyparflow")
    errors: dict[tuple[str, ...], dict[str, float]] = {(): {}, ("--refine", "0"): {}}
    for name, size in _MODELS.items():
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            _ranks(prefix, 1, "save", name, size, place / "model.keras")
            for words, found in errors.items():
                predicted = _planned(prefix, place, words)
                seconds = _ranks(prefix, 2, "train", place, _BATCH)["seconds"]
                found[name] = predicted / seconds - 1
                told = f"{predicted:.3f} s planned, {seconds:.3f} s measured"
                print(f"{' '.join((name, *words))}: {told}", file=sys.stderr)
    plan, quick = (_in_words(found) for found in errors.values())
    return [
        Outcome(
            f"the step that hyparflow plan predicts is off by, median of {len(_MODELS)} models",
            plan[0],
            0.15,
            "",
            f"worst: {plan[1]}; with --refine 0 {quick[0]:.0%}, worst: {quick[1]}",
        )
    ]


def _in_words(errors: dict[str, float]) -> tuple[float, str]:
    """The median of the models' errors, and the worst."""
    worst = max(errors, key=lambda name: abs(errors[name]))
    return statistics.median(map(abs, errors.values())), f"{worst}, {errors[worst]:+.0%}"


def _planned(prefix: Path, place: Path, words: Sequence[str]) -> float:
    """Seconds of a step as ``hyparflow plan`` predicts them; the plan lies beside the model."""
    command = [
        "taskset", "-c", "0", str(prefix / "bin" / "hyparflow"), "plan", str(place / "model.keras"),
        "--partitions", "2", "--batch-size", str(_BATCH), "--micro-batches", str(_MICRO_BATCHES),
        "--save", str(place / "plan.json"), "--json", *words,
    ]  # fmt: skip
    told = json.loads(_output(command))
    return float(told["prediction"]["step_seconds"])


def _ranks(prefix: Path, ranks: int, *words: object) -> dict[str, float]:
    """What rank 0 of ``benchmarks.plan_accuracy_ranks`` prints."""
    start = [str(prefix / "bin" / "mpiexec"), "-bind-to", "core", "-n", str(ranks), str(prefix / "bin" / "python")]
    printed = _output([*start, "-m", "benchmarks.plan_accuracy_ranks", *map(str, words)])
    told: dict[str, float] = json.loads(printed.splitlines()[-1])
    return told


def _output(command: list[str]) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY / 'libs' / 'hyparflow'}",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout

"""``table.py FILE NAME...``: what comes of ``layers.Dense`` and the like in 2 partitions beside Keras in one process.

FILE gets a line of JSON for each: ``{"name", "outcome", "reason"}``. Without arguments: the names that there are.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hyparflow
import keras
import numpy as np
from kinds import MODULES, NOT_TRAINED, names
from mpi4py import MPI
from specimens import Specimen, specimen

COMM = MPI.COMM_WORLD
#: Of a value, in float64: partitions compute the same operations, compiled and summed in another order.
TOLERANCE = 1e-9
#: The same where Keras itself raises an error in float64, and the model is trained in float32.
FLOAT32 = 1e-5
#: A difference is undecided up to so many times what a relative change of the images by LAST_BIT does to plain Keras.
AMPLIFIED, LAST_BIT = 100, 2e-16
#: Where Keras itself computes in float32 whatever the model's type is.
IN_FLOAT32 = {"losses.CTC": 1e-6}


def _trained(case: Specimen, model: Any) -> dict[str, Any]:
    """All that a fit, an evaluation and a prediction give."""
    history = model.fit(case.x, case.y, batch_size=case.batch, verbose=0, shuffle=False, **case.fitting()).history
    scores = model.evaluate(case.x, case.y, batch_size=case.batch, verbose=0, return_dict=True)
    found = {name: history[name] for name in sorted(history)} | {f"evaluate {k}": v for k, v in scores.items()}
    found["prediction"] = model.predict(case.x, batch_size=case.batch, verbose=0)
    return found | {f"weight {i}": each for i, each in enumerate(model.get_weights())}


def _plain(case: Specimen) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = case.build()
    model.compile(**case.compiling(), run_eagerly=case.eager)
    return _trained(case, model)


def _partitioned(case: Specimen) -> dict[str, Any]:
    keras.backend.clear_session()
    strategy = hyparflow.Strategy(
        partitions=2,
        micro_batches=case.micro_batches,
        costs="estimated",
        assignment=[case.cut] if case.cut else "auto",
    )
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = case.build()
        model.compile(**case.compiling())
        return _trained(case, model)


def _far(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    """The largest difference, of values above 1 relative to them, and where it is."""
    if set(one) != set(other):
        return float("inf"), f"{sorted(set(one) ^ set(other))}"
    far = []
    for name, value in one.items():
        a, b = np.asarray(value, dtype=np.float64), np.asarray(other[name], dtype=np.float64)
        if a.shape != b.shape:
            return float("inf"), f"{name}: {a.shape}, {b.shape}"
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        both_nan = np.isnan(a) & np.isnan(b)
        gap = np.where(both_nan, 0.0, np.abs(a - b))
        far.append((float(np.nan_to_num(np.max(gap, initial=0.0), nan=np.inf)) / scale, name))
    return max(far)


def _outcome(name: str) -> tuple[str, str]:
    module, kind = name.split(".")
    if reason := NOT_TRAINED.get(module, {}).get(kind):
        return "not trained", reason
    tolerance = IN_FLOAT32.get(name, TOLERANCE)
    try:
        case = specimen(module, kind)
        plain = _plain(case)
    except Exception:  # some of Keras' own layers mix float64 with float32
        keras.config.set_floatx("float32")
        tolerance = FLOAT32
        try:
            case = specimen(module, kind)
            plain = _plain(case)
        except Exception as error:
            return "not trained", f"Keras itself: {_line(error)}"
    COMM.barrier()
    os.chdir("..")
    try:
        found = _partitioned(case)
    except hyparflow.HyparflowError as error:
        return "refused", str(error).splitlines()[0]
    except Exception as error:
        return "wrong", _line(error)
    return _compared(case, plain, found, tolerance, is_application=module == "applications")


def _compared(
    case: Specimen, plain: dict[str, Any], found: dict[str, Any], tolerance: float, *, is_application: bool
) -> tuple[str, str]:
    worst, place = max(COMM.allgather(_far(found, plain)))
    if worst <= tolerance:
        return "equal", f"{worst:.0e}"
    if is_application:
        case.x = case.x * (1 + LAST_BIT * np.sign(np.sin(np.arange(case.x.size))).reshape(case.x.shape))
        rounding = COMM.bcast(_far(_plain(case), plain)[0])
        if worst <= AMPLIFIED * rounding:
            return "undecided", f"{worst:.0e}; the last bit of the images changes Keras' own numbers by {rounding:.0e}"
    return "wrong", f"{place} differs by {worst:.1e}"


def _line(error: Exception) -> str:
    words = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [each.strip() for each in words.splitlines() if each.strip()] or ["no words"]
    if lines[0].startswith("Exception encountered when calling") and len(lines) > 1:
        del lines[0]
    return f"{type(error).__name__}: {lines[0][:160]}"


def main(file: Path, wanted: list[str]) -> None:
    """A line for each name."""
    place = Path(COMM.bcast(tempfile.mkdtemp()))
    for name in wanted:
        begun = time.monotonic()
        keras.config.set_floatx("float64")
        own = place / f"{name}"
        (own / f"plain-{COMM.rank}").mkdir(parents=True)
        os.chdir(own / f"plain-{COMM.rank}")
        if COMM.rank == 0:
            with file.open("a") as out:
                out.write(json.dumps({"begun": name}) + "\n")
        outcome, reason = _outcome(name)
        if len(every := set(COMM.allgather(outcome))) > 1:
            outcome, reason = "wrong", f"ranks differ: {', '.join(sorted(every))}: {reason}"
        if COMM.rank == 0:
            line = {"name": name, "outcome": outcome, "reason": reason, "seconds": round(time.monotonic() - begun, 2)}
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        every = [f"{module}.{name}" for module in MODULES for name in names(module)]
        print(json.dumps({"version": keras.__version__, "names": every}))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])

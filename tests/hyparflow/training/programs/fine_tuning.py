"""The how-to's recipe, word by word, in 2 partitions and in one process: ``fine_tuning.py DIRECTORY CODE``.

Writes ``tuning.json``: the largest difference of their weights and of what they report.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

keras.config.set_floatx("float64")
COMM = MPI.COMM_WORLD
DRAW = np.random.default_rng(5)
SHAPE = (96, 96, 3)


def data(count: int) -> Any:
    """Images with a label."""
    x, y = DRAW.uniform(0.0, 255.0, size=(count, *SHAPE)), DRAW.integers(0, 2, size=(count, 1))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def tuned(code: str) -> dict[str, list[Any]]:
    """What a run of the code leaves."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "tune.py", "exec"), names)
    model = names["model"]
    saved = keras.models.load_model("tuned.keras")
    return {
        "history": [model.history.history[name] for name in sorted(model.history.history)],
        "weights": saved.get_weights(),
        "optimizer": [np.asarray(each) for each in saved.optimizer.variables],
    }


def main(root: Path, code: str) -> None:
    """Both, and the differences."""
    os.chdir(root)
    module: Any = types.ModuleType("my_data")
    module.train, module.validation = data(8), data(4)
    sys.modules["my_data"] = module
    keras.utils.set_random_seed(11)
    base = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=SHAPE)
    if COMM.rank == 0:
        base.save_weights("base.weights.h5")
    COMM.barrier()
    parted = tuned(code)
    COMM.barrier()
    import hyparflow

    hyparflow.set_strategy(None)
    plain = tuned("\n".join(line for line in code.splitlines() if "hyparflow" not in line)) if COMM.rank == 0 else {}
    if COMM.rank == 0:
        found = {
            name: max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, plain[name], strict=True))
            for name, one in parted.items()
        }
        (root / "tuning.json").write_text(json.dumps(found))


main(Path(sys.argv[1]), Path(sys.argv[2]).read_text())

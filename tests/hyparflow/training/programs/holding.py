"""What each of 2 ranks holds of a model of 96 MiB with its Adam: ``holding.json``, MiB, without what is free."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

# With oneDNN, which TensorFlow switches on by itself on processors with AVX512_VNNI, it keeps freed memory for itself.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import hyparflow
import keras
import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
WIDTH, LAYERS = 1448, 12  # 8 MiB a layer
X, Y = np.zeros((8, WIDTH), np.float32), np.zeros((8, 1), np.float32)


def resident() -> float:
    """MiB of this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def build() -> Any:
    """Dense layers of one size."""
    x = h = keras.Input((WIDTH,), name="x")
    for index in range(LAYERS):
        h = keras.layers.Dense(WIDTH, activation="tanh", name=f"row{index}")(h)
    model = keras.Model(x, keras.layers.Dense(1, name="last")(h))
    model.compile("adam", "mse")
    return model


def main(root: Path) -> None:
    """A model in one process; then the same loaded with its optimizer, fitted, saved, in 2 partitions."""
    keras.utils.set_random_seed(1)
    warm = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    warm.compile("adam", "mse")
    warm.fit(X[:, :2], Y, batch_size=8, verbose=0)
    before = resident()
    file = root / f"whole-{COMM.rank}.keras"
    plain = build()
    plain.fit(X, Y, batch_size=8, verbose=0)
    found = {"whole": resident() - before}
    plain.save(file)
    del plain
    before = resident()
    with hyparflow.Strategy(partitions=2, micro_batches=1, costs="estimated").scope():
        model = keras.models.load_model(file)
    found["loaded"] = resident() - before
    model.fit(X, Y, batch_size=8, verbose=0)
    found["fitted"] = resident() - before
    model.save(root / "parts.keras")
    found["saved"] = resident() - before
    every = COMM.gather(found)
    if COMM.rank == 0:
        (root / "holding.json").write_text(json.dumps(every))


main(Path(sys.argv[1]))

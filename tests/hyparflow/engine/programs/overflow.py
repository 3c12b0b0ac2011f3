"""Trains two partitions with gradients that are not finite, then with some that are; writes what the ranks do.

``overflow.py FILE``: FILE gets {"updated", "unchanged", "scale", "updated_then"}, with a value for each of 2 ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from hyparflow.engine.engine import Batch, Engine
from hyparflow.planning.planner import plan
from mpi4py import MPI


def overflow(comm: MPI.Comm) -> dict[str, Any]:
    """Two steps of two partitions in mixed precision, the first with a loss scale that float16 cannot hold."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="last", dtype="float32")(hidden))
    keras.config.set_dtype_policy("float32")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**120)
    model.compile(scaled, "mse")
    parallel = plan(
        model, partitions=2, batch_size=4, micro_batches=2, costs="estimated", recompute=False, assignment=["last"]
    )
    engine = Engine(model, parallel, comm)
    random = np.random.default_rng(0)
    batch = Batch((random.normal(size=(4, 4)).astype(np.float32),), (np.ones((4, 1), np.float32),))
    own = engine.programs[comm.rank].variables.values()
    before = [v.numpy() for v in own]
    updated = engine.train_step(batch).updated
    same = all(np.array_equal(a, v.numpy()) for a, v in zip(before, own, strict=True))
    scale = float(scaled.dynamic_scale.numpy())
    scaled.dynamic_scale.assign(2.0)
    told = comm.allgather((updated, same, scale, engine.train_step(batch).updated))
    engine.close()
    return dict(zip(("updated", "unchanged", "scale", "updated_then"), zip(*told, strict=True), strict=True))


if __name__ == "__main__":
    found = overflow(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))

"""Trains small models on 4 ranks under many plans; writes how far each ends from sequential training.

``equality.py FILE CASES``: CASES is a JSON list of {"name", "model", "partitions", "replicas", "schedule", "chunks",
"recompute", "predicts"}; FILE gets case -> {"variables", "loss", "predictions"}: the greatest differences, and under
"overflow" what two partitions do about gradients that are not finite. Cases that need 2 ranks run on both halves of the
world at once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sequential
from hyparflow.engine.engine import Batch, Engine
from hyparflow.engine.waiting import wait
from hyparflow.planning.planner import plan
from mpi4py import MPI
from small_models import MODELS

STEPS = 10
MICRO_BATCHES = 12  # over all replicas
SIZE = 2


def main(file: Path, cases: list[dict[str, Any]]) -> None:
    """Run all cases."""
    keras.config.set_floatx("float64")
    world = MPI.COMM_WORLD
    expected = references(world, cases)
    found: dict[str, Any] = {}
    print(f"rank {world.rank} has references after {time.process_time():.1f} s", flush=True)
    for ranks in (2, 3, 4):
        fitting = [case for case in cases if case["partitions"] * case["replicas"] == ranks]
        groups = world.size // ranks
        group = world.rank // ranks
        comm = world.Split(group, world.rank)
        if group < groups:
            for case in fitting[group::groups]:
                begin = time.perf_counter()
                key = (case["model"], case["replicas"])
                found[case["name"]] = difference(comm, case, *expected[key])
                if comm.rank == 0:
                    print(f"{case['name']}: {found[case['name']]} {time.perf_counter() - begin:.1f} s", flush=True)
    if world.rank < 2:
        keras.config.set_floatx("float32")
        found["overflow"] = overflow(world.Create_group(world.Get_group().Incl([0, 1])))
    wait(world.Ibarrier())
    everybody = world.gather(found)
    if everybody is not None:
        file.write_text(json.dumps({name: each for one in everybody for name, each in one.items()}))


def references(world: Any, cases: list[dict[str, Any]]) -> dict[Any, Any]:
    """(model, replicas) -> what sequential training gives; each is computed by one rank."""
    wanted = sorted({(case["model"], case["replicas"]) for case in cases})
    own = {}
    for name, replicas in wanted[world.rank :: world.size]:
        make, data = MODELS[name]
        model = make()
        trained = sequential.train(model, data, steps=STEPS, micro_batches=MICRO_BATCHES, size=SIZE, replicas=replicas)
        inputs, _, _ = data(STEPS, MICRO_BATCHES * SIZE)
        predictions = model(inputs if len(inputs) > 1 else inputs[0], training=False)
        own[name, replicas] = (*trained, [np.asarray(each) for each in keras.tree.flatten(predictions)])
    wait(world.Ibarrier())  # who has none to compute does not spin meanwhile
    return {key: value for one in world.allgather(own) for key, value in one.items()}


def difference(
    comm: Any,
    case: dict[str, Any],
    expected: list[dict[str, np.ndarray]],
    losses: list[float],
    predictions: list[np.ndarray],
) -> dict[str, float]:
    """Train, and look at every rank's own variables, at every step's loss, and at what it predicts then."""
    make, data = MODELS[case["model"]]
    model = make()
    parallel = plan(
        model,
        partitions=case["partitions"],
        replicas=case["replicas"],
        batch_size=MICRO_BATCHES * SIZE,
        micro_batches=MICRO_BATCHES // case["replicas"],
        schedule=case["schedule"],
        chunks=case["chunks"],
        recompute=case["recompute"],
        costs="estimated",
    )
    engine = Engine(model, parallel, comm)
    replica = engine.world.seat.replica
    rows = MICRO_BATCHES * SIZE // case["replicas"]
    worst_loss = 0.0
    for step in range(STEPS):
        own = (_rows(arrays, replica * rows, rows) for arrays in data(step, MICRO_BATCHES * SIZE))
        result = engine.train_step(Batch(*own))
        loss = comm.allreduce(result.loss) / case["replicas"]
        worst_loss = max(worst_loss, abs(loss - losses[step]))
    wait(comm.Ibarrier())
    values = {name: v.numpy() for program in engine.programs.values() for name, v in program.variables.items()}
    assert set(comm.allreduce(list(values))) == set(expected[replica])
    own_worst = max(float(np.max(np.abs(value - expected[replica][name]))) for name, value in values.items())
    found = {"variables": comm.allreduce(own_worst, MPI.MAX), "loss": worst_loss}
    if case["predicts"]:
        inputs = _rows(data(STEPS, MICRO_BATCHES * SIZE)[0], replica * rows, rows)
        own_far = [
            float(np.max(np.abs(value - predictions[output][first : first + SIZE])))
            for output, micro_batches in engine.predict_step(Batch(inputs)).items()
            for index, value in micro_batches.items()
            for first in [replica * rows + index * SIZE]
        ]
        wait(comm.Ibarrier())
        far = comm.allreduce(own_far)
        assert len(far) == len(predictions) * MICRO_BATCHES
        found["predictions"] = max(far)
    engine.close()
    return found


def overflow(comm: Any) -> dict[str, Any]:
    """Two steps of two partitions in mixed precision, the first with a loss scale that float16 cannot hold."""
    keras.utils.clear_session()
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


def _rows(arrays: Any, begin: int, count: int) -> tuple[Any, ...]:
    return tuple(None if array is None else array[begin : begin + count] for array in arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

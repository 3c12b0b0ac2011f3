"""Trains a small model on all ranks under many plans; writes how far each ends from sequential training.

``equality.py FILE CASES``: CASES is a JSON list of {"name", "model", "partitions", "replicas", "schedule", "chunks",
"recompute", "predicts"}, all of one model, whose partitions times replicas are the ranks; FILE gets case ->
{"variables", "loss", "predictions"}: the greatest differences.
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
from hyparflow.engine.engine import Batch, Engine, Options
from hyparflow.engine.world import wait
from hyparflow.planning.planner import plan
from mpi4py import MPI
from small_models import MODELS

STEPS = 10
MICRO_BATCHES = 12  # over all replicas
SIZE = 2
Reference = tuple[list[dict[str, np.ndarray]], list[float], list[np.ndarray]]


def main(file: Path, cases: list[dict[str, Any]]) -> None:
    """Run all cases, which are of one model and one number of replicas."""
    keras.config.set_floatx("float64")
    world = MPI.COMM_WORLD
    expected = reference(world, cases[0]["model"], cases[0]["replicas"])
    print(f"rank {world.rank} has the reference after {time.process_time():.1f} s", flush=True)
    found: dict[str, Any] = {}
    for case in cases:
        begin = time.perf_counter()
        found[case["name"]] = difference(world, case, *expected)
        if world.rank == 0:
            print(f"{case['name']}: {found[case['name']]} {time.perf_counter() - begin:.1f} s", flush=True)
    if world.rank == 0:
        file.write_text(json.dumps(found))


def reference(world: MPI.Comm, model: str, replicas: int) -> Reference:
    """What sequential training gives: variables after each replica, losses, predictions; collective."""
    found = None
    if world.rank == 0:
        make, data = MODELS[model]
        whole = make()
        trained = sequential.train(whole, data, steps=STEPS, micro_batches=MICRO_BATCHES, size=SIZE, replicas=replicas)
        inputs, _, _ = data(STEPS, MICRO_BATCHES * SIZE)
        predictions = whole(inputs if len(inputs) > 1 else inputs[0], training=False)
        found = (*trained, [np.asarray(each) for each in keras.tree.flatten(predictions)])
    wait(world.Ibarrier())  # the others do not spin meanwhile
    expected: Reference = world.bcast(found)
    return expected


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
        spatial=case.get("spatial", 1),
    )
    engine = Engine(model, parallel, comm, Options(case.get("batch_norm", "replica")))
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


def _rows(arrays: Any, begin: int, count: int) -> tuple[Any, ...]:
    return tuple(None if array is None else array[begin : begin + count] for array in arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

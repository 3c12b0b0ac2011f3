"""Trains small models on 4 ranks under many plans; writes how far each ends from sequential training.

``equality.py FILE CASES``: CASES is a JSON list of {"name", "model", "partitions", "replicas", "schedule", "chunks",
"recompute"}; FILE gets case -> {"variables", "loss"}: the greatest differences. Cases that need 2 ranks run on the two
halves of the world at once.
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
        own[name, replicas] = sequential.train(
            make(), data, steps=STEPS, micro_batches=MICRO_BATCHES, size=SIZE, replicas=replicas
        )
    wait(world.Ibarrier())  # who has none to compute does not spin meanwhile
    return {key: value for one in world.allgather(own) for key, value in one.items()}


def difference(comm: Any, case: dict[str, Any], expected: list[dict[str, np.ndarray]], losses: list[float]) -> Any:
    """Train, and look at every rank's own variables and at every step's loss."""
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
    engine.close()
    return {"variables": comm.allreduce(own_worst, MPI.MAX), "loss": worst_loss}


def _rows(arrays: Any, begin: int, count: int) -> tuple[Any, ...]:
    return tuple(None if array is None else array[begin : begin + count] for array in arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

"""Fit a line by data-parallel SGD over several jobs, with $HIDL_TOTAL_BATCH samples per step on any number of ranks.

``elastic.py STEPS SECONDS``: each step takes SECONDS. The samples of each step are in the directory ``samples``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hidl_workloads.checkpoint import Checkpoints, Snapshot

SAMPLES = 48
world = MPI.COMM_WORLD
steps, seconds = int(sys.argv[1]), float(sys.argv[2])
total = int(os.environ["HIDL_TOTAL_BATCH"])
share = total // world.size
inputs = np.random.default_rng(1).normal(size=(SAMPLES, 3))
targets = inputs @ np.array([1.0, -2.0, 3.0]) + np.random.default_rng(2).normal(size=SAMPLES)
directory = Path(os.environ["HIDL_CHECKPOINT"])
checkpoints = Checkpoints(world, directory, identity={"total": total}, versions={})
found = checkpoints.newest(steps)
step, weights = (found.step, np.load(found.shared)) if found else (0, np.zeros(3))
record = directory.with_name("samples")
record.mkdir(exist_ok=True)
if world.rank == 0:
    print(f"begins at {step} on {world.size} ranks", flush=True)
while step < steps:
    first = step * total
    epoch, place = divmod(first, SAMPLES)
    batch = np.random.default_rng((3, epoch)).permutation(SAMPLES)[place : place + total]
    mine = batch[world.rank * share : (world.rank + 1) * share]
    gradient = inputs[mine].T @ (inputs[mine] @ weights - targets[mine])
    world.Allreduce(MPI.IN_PLACE, gradient)
    weights = weights - 0.05 * gradient / total
    used = world.gather(mine.tolist())
    time.sleep(seconds)
    step += 1
    if world.rank == 0:
        (record / f"{step:04d}").write_text(" ".join(str(sample) for each in used for sample in each))
    state = Snapshot(shared=lambda file: np.save(file, weights), own=lambda file: None, document={})  # noqa: B023
    if checkpoints.after_step(step, lambda: state, last=step == steps):  # noqa: B023
        sys.exit(0 if world.rank else 75)
checkpoints.finish()
if world.rank == 0:
    np.save(directory.with_name("weights.npy"), weights)
    print(f"done at {step}", flush=True)

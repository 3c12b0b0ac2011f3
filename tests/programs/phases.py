"""Ten steps with phases; rank 1 computes longer in backward: phases.py [die]."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

from hidl_workloads.metrics import Metric, report
from hidl_workloads.phases import phase, warmup

WORLD = MPI.COMM_WORLD
SECONDS = 0.02
WHAT = sys.argv[1] if len(sys.argv) > 1 else ""


def step() -> None:
    with phase("step"):
        with phase("forward"):
            time.sleep(SECONDS)
        with phase("backward"):
            until = time.perf_counter() + SECONDS
            while WORLD.rank == 1 and time.perf_counter() < until:
                pass
        with phase("average"):
            WORLD.Allreduce(np.zeros(1000), np.zeros(1000))


with warmup():
    step()
    time.sleep(0.2 if WORLD.rank == 0 else 0)
if WHAT == "die":
    step()
    if WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
WORLD.Barrier()
seconds = []
for _ in range(10):
    begin = time.perf_counter()
    step()
    seconds.append(time.perf_counter() - begin)
rates = [WORLD.size / each for each in seconds]
report(
    WORLD,
    program="phases",
    parameters={},
    versions={},
    metrics=[Metric("rate", float(np.median(rates)), "items/s", rates)],
)

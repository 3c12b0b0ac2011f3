"""A program under test that computes: how often each rank gets round in 0.3 s of the clock, all ranks together."""

import json
import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

SECONDS = 0.3
world = MPI.COMM_WORLD
given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
world.Barrier()
end, rounds = time.perf_counter() + SECONDS, 0
while time.perf_counter() < end:
    sum(range(1000))
    rounds += 1
rate = world.allreduce(rounds) / SECONDS
if world.rank == 0:
    metrics = [{"name": "rate", "value": rate, "unit": "1/s", "samples": [rate]}]
    document = {"schema": "hidl.metrics/1", "world": {"size": world.size}, "parameters": given, "metrics": metrics}
    Path(os.environ["HIDL_METRICS"]).write_text(json.dumps(document))

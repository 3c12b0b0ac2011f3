"""A program under test whose pace is known: each step of each rank takes 40 ms, and all wait for the slowest.

``--slow-rank=R --slow=S``: rank R takes S seconds more for each step.
"""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

from mpi4py import MPI

STEPS = 11
world = MPI.COMM_WORLD
given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
if given.get("hang") == "true":
    time.sleep(600)
pause = 0.04 + (float(given.get("slow", 0)) if world.rank == int(given.get("slow_rank", -1)) else 0.0)
world.Barrier()
seconds = []
for _ in range(STEPS):
    began = time.perf_counter()
    time.sleep(pause)
    world.Barrier()
    seconds.append(time.perf_counter() - began)
rate = world.size / median(seconds)
metrics = [] if given.get("silent") == "true" else [{"name": "rate", "value": rate, "unit": "1/s", "samples": [rate]}]
if world.rank == 0:
    document = {"schema": "hidl.metrics/1", "world": {"size": world.size}, "parameters": given, "metrics": metrics}
    Path(os.environ["HIDL_METRICS"]).write_text(json.dumps(document))

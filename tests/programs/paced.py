"""A program under test whose pace is known: each step of each rank takes 0.2 s, and all wait for the slowest.

``--slow_rank=R --slow=S``: rank R takes S seconds more for each step. What counts is how long ranks mean to sleep,
give or take half a percent: a busy machine stretches what a clock says.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from statistics import median

from mpi4py import MPI

STEPS = 3
world = MPI.COMM_WORLD
given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
if given.get("hang") == "true":
    time.sleep(600)
pause = 0.2 + (float(given.get("slow", 0)) if world.rank == int(given.get("slow_rank", -1)) else 0.0)
seconds = []
for _ in range(STEPS):
    step = pause * random.uniform(0.995, 1.005)
    time.sleep(step)
    seconds.append(world.allreduce(step, MPI.MAX))
rate = world.size / median(seconds)
metrics = [] if given.get("silent") == "true" else [{"name": "rate", "value": rate, "unit": "1/s", "samples": [rate]}]
if world.rank == 0:
    document = {"schema": "hidl.metrics/1", "world": {"size": world.size}, "parameters": given, "metrics": metrics}
    Path(os.environ["HIDL_METRICS"]).write_text(json.dumps(document))

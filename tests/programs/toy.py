"""A program under test: waits (``sleep`` seconds; for the file ``go``), then yields a rate and what it was given."""

import json
import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
print(f"rank {world.rank} of {world.size} here", flush=True)
time.sleep(float(given.get("sleep", 0)))
while (go := given.get("go")) and not Path(go).exists():
    time.sleep(0.05)
if given.get("fail") == "true" and world.rank == world.size - 1:
    print("the last rank fails on purpose", file=sys.stderr, flush=True)
    time.sleep(0.5)  # where a scheduler kills the others at once, what was said last can be lost
    sys.exit(1)
checksums = world.gather(f"rank {world.rank}" if given.get("differ") == "true" else "same")
if world.rank == 0 and given.get("silent") != "true":
    per_rank = float(given.get("efficiency", 1)) if world.size > 1 else 1.0
    noise = 1 + (time.perf_counter_ns() % 1000) / 1e6  # up to 0.1 %, as no measurement is without
    here = 0.8 if world.size == 1 and given.get("slow") == os.uname().nodename else 1.0
    rate = 100.0 * world.size * per_rank * noise * here
    metrics = [
        {"name": "rate", "value": rate, "unit": "items/s", "samples": [rate]},
        {"name": "checksum", "value": checksums[0], "unit": "sha256", "samples": checksums},
    ]
    document = {"schema": "hidl.metrics/1", "world": {"size": world.size}, "parameters": given, "metrics": metrics}
    Path(os.environ["HIDL_METRICS"]).write_text(json.dumps(document))

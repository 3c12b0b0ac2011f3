"""Write the energy of a step and the ranks of a node, as ranks see them, to OUT: OUT COUNTER.

Rank 0 adds 100 J to the file COUNTER, in microjoules, during the step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpi4py import MPI

from hidl_workloads import energy
from hidl_workloads.training import strategy

WORLD, COUNTER = MPI.COMM_WORLD, Path(sys.argv[2])

meter = energy.Meter(WORLD)
WORLD.Barrier()
meter.start()
WORLD.Barrier()
if WORLD.rank == 0:
    COUNTER.write_text(f"{int(COUNTER.read_text()) + 100_000_000}\n")
WORLD.Barrier()
meter.stop()
found = meter.collect(50, "image")
per_node = strategy._per_node(WORLD)
if found is not None:
    Path(sys.argv[1]).write_text(json.dumps(found.as_document() | {"ranks_per_node": per_node}))

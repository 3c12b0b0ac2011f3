"""Writes to the file named first what the MPI library says of GPU memory."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from mpi4py import MPI

from hidl_workloads import gpu_aware

if MPI.COMM_WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(asdict(gpu_aware.ask())))

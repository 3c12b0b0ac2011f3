"""``python -m hidl_workloads.resnet50``."""

from __future__ import annotations

import sys

from mpi4py import MPI  # before any framework

from hidl_workloads.resnet50.benchmark import run
from hidl_workloads.resnet50.parameters import parse
from hidl_workloads.world import failure_ends_all_ranks

with failure_ends_all_ranks():
    try:
        chosen = parse(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"resnet50: {error}")
    run(MPI.COMM_WORLD, chosen)

"""``python -m hidl_workloads.omb_pairs [--latency_size=8] [--bandwidth_size=1048576] ...``, on two ranks or more."""

from __future__ import annotations

import sys

from mpi4py import MPI

from hidl_workloads import arguments
from hidl_workloads.omb_pairs.tournament import run
from hidl_workloads.parameters import OmbPairs
from hidl_workloads.world import failure_ends_all_ranks

with failure_ends_all_ranks():
    try:
        parameters = arguments.parse(OmbPairs, sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"omb_pairs: {error}\n")
        sys.exit(2)
    run(MPI.COMM_WORLD, parameters)

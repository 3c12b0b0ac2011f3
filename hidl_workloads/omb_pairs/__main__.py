"""``python -m hidl_workloads.omb_pairs [--latency_size=8] [--bandwidth_size=1048576] ...``, on two ranks or more."""

from __future__ import annotations

import sys

from mpi4py import MPI

from hidl_workloads.omb_pairs.tournament import parse, run
from hidl_workloads.world import failure_ends_all_ranks

with failure_ends_all_ranks():
    run(MPI.COMM_WORLD, parse(sys.argv[1:]))

"""As ``runs_benchmarks.py``, with every two ranks on a node of their own by name; later ranks are on earlier nodes."""

import runpy
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.omb import fan

fan.node_name = lambda: f"node{9 - MPI.COMM_WORLD.rank // 2}"
runpy.run_path(str(Path(__file__).with_name("runs_benchmarks.py")), run_name="__main__")

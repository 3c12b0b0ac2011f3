"""Runs benchmarks as ``runs_benchmarks.py`` does, with collectives that are broken: ``breaks_collectives.py HOW JSON``.

``idle``: the timed calls do nothing. ``flipped``: they work, and then one bit of the receive buffer is another.
"""

import dataclasses
import runpy
import sys
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.omb.collective_timing import Operation

how = sys.argv.pop(1)
make, wrong = Operation._make, Operation.wrong


def idle(self, root, timed):
    call = make(self, root, timed)
    return dataclasses.replace(call, once=lambda: None, start=lambda: MPI.Request(MPI.REQUEST_NULL)) if timed else call


def flipped(self, iteration, arrived):
    self.received.write(self.received.read(1) ^ 1)
    return wrong(self, iteration, arrived)


if how == "idle":
    Operation._make = idle
else:
    Operation.wrong = flipped
runpy.run_path(str(Path(__file__).with_name("runs_benchmarks.py")), run_name="__main__")

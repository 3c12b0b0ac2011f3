"""Runs benchmarks one after the other: ``runs_benchmarks.py JSON``, a list of command lines, each a list of words.

Rank 0 prints a JSON list of what each ended with and said: ``[status, stdout, stderr]``. Each is a section of its own
for the library that counts calls, beginning with 1.
"""

import contextlib
import io
import json
import sys

from mpi4py import MPI

from hidl_workloads.omb.program import main

told = []
for words in json.loads(sys.argv[1]):
    MPI.Pcontrol(1)
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = main(words)
    told.append((status, out.getvalue(), error.getvalue()))
MPI.Pcontrol(1)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(told))

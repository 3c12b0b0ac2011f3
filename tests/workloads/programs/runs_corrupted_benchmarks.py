"""As ``runs_benchmarks.py``, and the last element of all that is written into a buffer is wrong."""

import runpy
from pathlib import Path

from hidl_workloads.omb import buffers

right = buffers.Buffer.write


def wrong(buffer, data, start=0):
    """Write ``data`` with its last element one more."""
    changed = data.copy()
    changed[-1:] += 1
    right(buffer, changed, start)


buffers.Buffer.write = wrong
runpy.run_path(str(Path(__file__).with_name("runs_benchmarks.py")), run_name="__main__")

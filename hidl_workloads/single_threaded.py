"""``hidl_workloads.world`` for a module that calls MPI from one thread, so that MPI takes no locks.

::

    HIDL_WORLD_SIZE=2 mpiexec -n 2 python -m hidl_workloads.single_threaded MODULE [ARG...]
"""

from __future__ import annotations

import sys

import mpi4py

if __name__ == "__main__":
    mpi4py.rc.thread_level = "single"  # set before the import of MPI, which initialises it
    from hidl_workloads.world import main

    sys.exit(main(sys.argv[1:]))

"""Rank 1 fails in the way that the argument names, while the others wait for it.

``unheard``: with an exception, while the launcher on its node is asleep.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    if sys.argv[1] == "unheard":
        launcher = os.getppid()
        subprocess.Popen(["sh", "-c", f"exec >&- 2>&-; sleep 0.3; kill -CONT {launcher}"])
        os.kill(launcher, signal.SIGSTOP)
        raise RuntimeError("rank 1 is not heard")
    if sys.argv[1] == "exception":
        raise RuntimeError("rank 1 has had enough")
    sys.exit(int(sys.argv[1]))
MPI.COMM_WORLD.Barrier()

"""Ranks that are killed the first time; the second time, they print whether they share other memory than before."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mpi4py import MPI

maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
(memory,) = {Path(fields[5]) for fields in maps if fields[5:] and fields[5].startswith("/dev/shm/mpich_shm_")}
this = f"{memory.name} {memory.stat().st_ino} {memory.stat().st_mtime_ns}"
left = Path(os.environ["HIDL_CHECKPOINT"]) / "memory"
if left.exists():
    print("the same memory" if left.read_text() == this else "other memory", flush=True)
else:
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        left.parent.mkdir(exist_ok=True)
        left.write_text(this)
    MPI.COMM_WORLD.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)

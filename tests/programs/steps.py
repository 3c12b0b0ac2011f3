"""Train for LAST steps of SECONDS each, over several jobs, with checkpoints: ``steps.py LAST SECONDS [STEP=HOW ...]``.

After a STEP, it is killed (``kill``), or requests its own stop (``stop``), the first time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.checkpoint import Checkpoints, Snapshot

last, seconds = int(sys.argv[1]), float(sys.argv[2])
ends = dict(word.split("=") for word in sys.argv[3:])
directory = Path(os.environ["HIDL_CHECKPOINT"])
checkpoints = Checkpoints(MPI.COMM_WORLD, directory, identity={}, versions={})
found = checkpoints.newest(last)
step = found.step if found else 0
print(f"begins at {step}", flush=True)
while step < last:
    time.sleep(seconds)
    step += 1
    ended = directory / f".ended-{step}"
    how = None if ended.exists() else ends.get(str(step))
    if how is not None:
        ended.touch()
    if how == "stop":
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)
    state = Snapshot(shared=lambda file: None, own=lambda file: None, document={})
    if checkpoints.after_step(step, lambda: state, last=step == last):  # noqa: B023
        sys.exit(75)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.finish()
print(f"done at {step}", flush=True)

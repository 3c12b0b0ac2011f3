"""Count to ten with a checkpoint after each step: ``killed_while_saving.py RESULTS DIRECTORY [VICTIM STEP]``.

The rank VICTIM is killed while it writes its file of the checkpoint after STEP.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from mpi4py import MPI

from hidl_workloads.checkpoint import Checkpoints, Snapshot

STEPS = 10


def main(results: str, directory: str, victim: int = -1, fatal: int = -1) -> None:
    world = MPI.COMM_WORLD
    checkpoints = Checkpoints(world, Path(directory), identity={}, versions={})
    found = checkpoints.newest(STEPS)
    begun = found.step if found else 0
    count = int(found.own.read_text()) if found else 1000 * world.rank
    for step in range(begun + 1, STEPS + 1):
        count += 1

        def own(file: BinaryIO, step: int = step, text: str = str(count)) -> None:
            file.write(text[:2].encode())
            if (world.rank, step) == (victim, fatal):
                os.kill(os.getpid(), signal.SIGKILL)
            file.write(text[2:].encode())

        checkpoints.after_step(step, lambda own=own: Snapshot(lambda file: None, own, {}))
    counts = world.gather(count)
    if world.rank == 0:
        names = sorted(path.name for path in Path(directory).iterdir())
        Path(results).write_text(json.dumps({"begun": begun, "counts": counts, "names": names}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))

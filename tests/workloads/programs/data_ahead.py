"""Take batches of samples of a megabyte with eight readers, and write how many are read ahead to OUT: OUT BATCH."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hidl_workloads.parameters import Training
from hidl_workloads.training.data import BatchReader
from hidl_workloads.training.model import Batch, DataSet

BATCH, TAKEN = int(sys.argv[2]), 4


class Zeros(DataSet):
    """Zeros, without memory of their own; ``begun`` has an entry for each batch that was begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def __len__(self) -> int:
        return 1000 * BATCH

    def read(self, samples: Sequence[tuple[int, int]]) -> Batch:
        self.begun.append(len(samples))
        inputs = np.broadcast_to(np.zeros(1, np.uint8), (len(samples), 2**20))
        return Batch(inputs, np.zeros(len(samples), np.int64))


data = Zeros()
reader = BatchReader(data, MPI.COMM_WORLD, Training(batch=BATCH, readers=8))
for _ in range(TAKEN):
    reader.take()
while any(not each.done() for each in reader._pending):
    time.sleep(0.01)
Path(sys.argv[1]).write_text(json.dumps(len(data.begun) - TAKEN))
reader.close()

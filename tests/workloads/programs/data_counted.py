"""Read a file of the tokens 0, 1, 2, ... for three epochs on 1 to 4 ranks: OUT DATA CONTEXT BATCH.

Written as JSON to OUT: the sequences of each step, by the number of ranks, in the order of the ranks; the last entry is
that of a reading that is continued on other numbers of ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hidl_workloads.parameters import Training
from hidl_workloads.training.data import BatchReader, TokenData

WORLD = MPI.COMM_WORLD
EPOCHS = 3


def read(ranks: int, position: int, samples: int, data_words: list[str]) -> tuple[list[int], int]:
    """Return the numbers of the sequences that ``ranks`` ranks read from a position on, and the last position."""
    path, context, batch = Path(data_words[0]), *map(int, data_words[1:])
    group = WORLD.Split(WORLD.rank < ranks)
    found: list[int] = []
    if WORLD.rank < ranks:
        data = TokenData(group, path, context=context, vocabulary=1 << 16)
        reader = BatchReader(data, group, Training(batch=batch, readers=2))
        reader.position = position
        while reader.position < min(position + samples, EPOCHS * len(data)):
            batch_read = reader.take()
            assert (np.diff(batch_read.inputs) == 1).all()
            assert (batch_read.targets == batch_read.inputs + 1).all()
            for each in group.allgather(batch_read.inputs[:, 0].tolist()):
                found += [first // context for first in each]
        position = reader.position
        reader.close()
    group.Free()
    return WORLD.bcast(found), WORLD.bcast(position)


def main() -> None:
    results = {str(ranks): read(ranks, 0, 1 << 30, sys.argv[2:])[0] for ranks in (1, 2, 3, 4)}
    continued, position = [], 0
    for ranks in (3, 1, 4, 2):
        found, position = read(ranks, position, 7 if ranks != 2 else 1 << 30, sys.argv[2:])
        continued += found
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results | {"continued": continued}))


main()

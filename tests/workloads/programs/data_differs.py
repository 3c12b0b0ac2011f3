"""Open a data set of tokens in the directories DIRECTORY.RANK, and print the reason if it is refused: DIRECTORY."""

from __future__ import annotations

import sys
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.refusal import exit_if_refused
from hidl_workloads.training.data import TokenData

with exit_if_refused(MPI.COMM_WORLD, "data"):
    rank = MPI.COMM_WORLD.rank
    print(rank, len(TokenData(MPI.COMM_WORLD, Path(f"{sys.argv[1]}.{rank}"), context=4, vocabulary=1 << 16)))

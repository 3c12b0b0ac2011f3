"""The program of mpi4c10d's README, CODE, on ranks and without: ``OUT CODE``.

Written as JSON to OUT: the largest difference between the gradients on any rank and the mean of those of all ranks'
samples, and between the latter and those of one rank's.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import mpi4c10d  # noqa: F401
import torch
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
torch.manual_seed(WORLD.rank)
own = runpy.run_path(sys.argv[2], run_name="__main__")["model"].module.weight.grad
gradients = []
for rank in range(WORLD.size):
    torch.manual_seed(rank)
    torch.nn.Linear(8, 1)  # draws its weights first, as in the program
    gradients.append(torch.randn(16, 8).sum(0))
mean = torch.stack(gradients).mean(0)
differences = WORLD.allgather(float((own - mean).abs().max()))
if WORLD.rank == 0:
    document = {"difference": max(differences), "without averages": float((gradients[0] - mean).abs().max())}
    Path(sys.argv[1]).write_text(json.dumps(document))

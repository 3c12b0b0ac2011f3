"""A rank's memory, files and threads: ``mpiexec -n 2 python long_training_ranks.py RESULT FEW MANY REBUILT``."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer


def figures(seconds: float) -> dict[str, Any]:
    """What this process holds; ``seconds``: of a step."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * resource.getpagesize(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "seconds": seconds,
    }


def make(model: torch.nn.Module) -> Any:
    """Plain SGD, which averages over the ranks."""
    return DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model, MPI.COMM_WORLD)


def train(model: torch.nn.Module, optimizer: Any, steps: int) -> float:
    """Train on one batch; seconds of a step."""
    samples = torch.ones(4, 256)
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / steps


def main(few: int, many: int, rebuilt: int) -> list[dict[str, Any]]:
    """The figures after as many steps, and after optimizers that were made, used and closed."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    optimizer = make(model)
    found = [figures(train(model, optimizer, few))]
    found.append(figures(train(model, optimizer, many - few)))
    for _ in range(rebuilt):
        optimizer.close()
        optimizer = make(model)
        seconds = train(model, optimizer, 2)
    optimizer.close()
    return [*found, figures(seconds)]


of_rank = main(*map(int, sys.argv[2:]))
if MPI.COMM_WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(of_rank))

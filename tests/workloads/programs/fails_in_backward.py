"""Rank 1 fails in its backward pass, while the others wait for its gradients."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 2))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def fail(gradient: Any) -> None:
        raise ArithmeticError("rank 1 cannot compute its gradient")

    if MPI.COMM_WORLD.rank == 1:
        model[0].weight.register_hook(fail)
    model(torch.ones(1, 200)).sum().backward()
    optimizer.step()

# train.py
import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.world import failure_ends_all_ranks

world = MPI.COMM_WORLD
with failure_ends_all_ranks():  # else the others wait for ever for a rank that failed
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    generator = torch.Generator().manual_seed(world.rank)  # every rank has data of its own
    for step in range(100):
        x = torch.randn(32, 20, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()  # the sums start while it runs; when it returns, the gradients are averages
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if world.rank == 0:
        torch.save(model.state_dict(), "model.pt")

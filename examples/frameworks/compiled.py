# compiled.py
import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.world import failure_ends_all_ranks

world = MPI.COMM_WORLD
batch = 8
with failure_ends_all_ranks():
    torch.manual_seed(0)
    x = torch.randn(192, 20)[world.rank :: world.size]
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    compiled = torch.compile(model)
    for inputs in x.split(batch):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(compiled(inputs), (inputs.sum(1) > 0).long()).backward()
        optimizer.step()
    if world.rank == 0:
        torch.save(model.state_dict(), "model.pt")

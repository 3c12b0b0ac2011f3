# sharded.py
import torch
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

batch = 8
dist.init_process_group("mpi")
size = dist.get_world_size()
pair = 2 if size % 2 == 0 else 1
mesh = dist.init_device_mesh("cpu", (size // pair, pair), mesh_dim_names=("data", "model"))
torch.manual_seed(0)
x = torch.randn(192, 20)
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for joint in x.split(batch * size):
        inputs = joint.chunk(size // pair)[mesh.get_local_rank("data")]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long()).backward()
        optimizer.step()
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0:
    torch.save(whole, "model.pt")
dist.destroy_process_group()

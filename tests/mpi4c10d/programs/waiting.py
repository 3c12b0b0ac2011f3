"""The last rank waits in another collective than the others, until all time out."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("mpi", timeout=timedelta(seconds=3))
rank, last = dist.get_rank(), dist.get_world_size() - 1
pair = dist.new_group([0, last])
for _ in range(3):
    dist.all_reduce(torch.ones(4))
parts = [torch.ones(2) for _ in range(last + 1)]
dist.all_gather(parts, torch.ones(2))
try:
    if rank == last:
        dist.all_reduce(torch.ones(8), group=pair)  # rank 0 is missing
    else:
        dist.all_reduce(torch.ones(5))  # the last rank is missing
except RuntimeError as error:
    print(f"rank {rank}: {error}", flush=True)

"""Print as JSON what ``import torch`` registers, and that it does not initialize MPI."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist

found = {
    "imported MPI": "mpi4py.MPI" in sys.modules,
    "available": dist.is_mpi_available(),
    "backends": sorted(set(dist.Backend.backend_list) & {"mpi", "mpi4c10d"}),
    "world": [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")],
}
if sys.argv[1:]:
    dist.init_process_group(sys.argv[1])
    found["chosen"] = [
        str(dist.get_backend()),
        dist.get_backend() == sys.argv[1],
        dist.get_rank(),
        dist.get_world_size(),
    ]
    other = dist.new_group(backend="gloo")
    found["beside"] = dist.get_backend(other)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_rank(), group=other)
    found["gathered"] = gathered
    dist.destroy_process_group()
    dist.init_process_group(sys.argv[1])  # a second time
    dist.barrier()
    dist.destroy_process_group()
print(json.dumps(found) + "\n", end="", flush=True)

"""The last ranks miss a monitored barrier; the others print what they are told. Argument: the backend."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
dist.monitored_barrier()
if rank < size - 2:
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        print(error, flush=True)
dist.barrier()
dist.destroy_process_group()

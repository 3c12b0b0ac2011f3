"""Kill the last rank at a random moment within one kind of call; the others print their errors.

Arguments: the call, and the seed of the moment.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

call, seed = sys.argv[1], int(sys.argv[2])
dist.init_process_group("mpi", timeout=timedelta(seconds=120))
rank, size = dist.get_rank(), dist.get_world_size()
values = torch.ones(250_000)
gathered = [torch.empty_like(values) for _ in range(size)]
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]), bucket_cap_mb=1)
inputs = torch.ones(16, 256)
calls = {
    "all_reduce": lambda: dist.all_reduce(values.fill_(1)),
    "all_gather": lambda: dist.all_gather(gathered, values),
    "barrier": dist.barrier,
    "backward": lambda: model(inputs).sum().backward(),
}
calls[call]()
dist.barrier()
began = time.monotonic()
if rank == size - 1:
    # The default action of SIGALRM ends the process, within MPI too.
    signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(0.01, 0.3))
try:
    while time.monotonic() < began + 60:
        calls[call]()
except RuntimeError as error:
    print(f"rank {rank}: {time.monotonic() - began:.3f}: {str(error).splitlines()[0]}", flush=True)
    raise
print(f"rank {rank}: success", flush=True)

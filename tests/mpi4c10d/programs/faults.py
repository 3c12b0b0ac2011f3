"""The last rank does not take part in a collective: it raises, dies, is late or leaves. The others print their errors.

Arguments: the fault, and the timeout in seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

fault, seconds = sys.argv[1], float(sys.argv[2])
dist.init_process_group("mpi", timeout=timedelta(seconds=seconds))
rank, last = dist.get_rank(), dist.get_world_size() - 1
dist.barrier()
began = time.monotonic()
if rank == last:
    if fault == "raises":
        raise ValueError("a fault of the program")
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "leaves":
        sys.exit(0)
    if fault == "is late":
        time.sleep(2 * seconds)
try:
    dist.all_reduce(torch.ones(4))
    print(f"rank {rank}: success", flush=True)
except RuntimeError as error:
    print(f"rank {rank}: {time.monotonic() - began:.3f}: {error}", flush=True)
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as again:
        print(f"rank {rank} again: {again}", flush=True)
    if fault != "is late":
        raise

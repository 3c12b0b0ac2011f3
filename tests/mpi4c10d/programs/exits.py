"""Fork processes that each leave with asynchronous work under way, and print as JSON how many ended with which status.

Each is an MPI world of one rank: to start 30 of them costs less than one start under mpiexec. Arguments: how they
leave, and their number.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

how, number = sys.argv[1], int(sys.argv[2])


def product(future: torch.futures.Future) -> torch.Tensor:
    """Compute for a while without Python's lock."""
    values = future.value()[0].reshape(100, -1)
    return values @ values.t()


def leave(seed: int) -> None:
    sys.setswitchinterval(1e-6)
    dist.init_process_group("mpi", store=dist.HashStore(), rank=0, world_size=1)
    works = [dist.all_reduce(torch.ones(20_000), async_op=True) for _ in range(60)]
    futures = [work.get_future().then(product) for work in works]
    time.sleep(seed % 7 * 1e-3)
    if how == "destroys the group":
        for work in works:
            work.wait()
        dist.destroy_process_group()
    elif how == "has workers":
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        workers = iter(DataLoader(range(100), num_workers=2, multiprocessing_context="fork"))
        assert len(next(workers)) == 1
        sys.exit(0)
    elif how == "waits in a callback":
        never, message = dist.irecv(torch.ones(1), 0), dist.irecv(torch.ones(1), 0, tag=1)
        futures.append(message.get_future().then(lambda _: never.wait()))
        dist.group.WORLD.send([torch.ones(1)], 0, 1).wait()
    elif how == "waits in a thread":
        never = dist.irecv(torch.ones(1), 0)
        threading.Thread(target=never.wait, daemon=True).start()
    elif how == "raises":
        raise ValueError("a fault of the program")


ends: dict[int, int] = collections.Counter()
for seed in range(number):
    process = os.fork()
    if process == 0:
        leave(seed)
        sys.exit(0)
    ends[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])] += 1
print(json.dumps(ends))

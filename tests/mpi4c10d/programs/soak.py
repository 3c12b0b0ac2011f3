"""Call random collectives in several threads for some time, each on groups of its own, and compare with NumPy.

Arguments: seconds, threads, and the first seed. Rank 0 prints as JSON the number of calls, and the growth of a rank's
memory in MiB: the least in the last quarter of the time against the least in the second.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from random_collectives import Case

#: Calls between two agreements on whether to go on; seeds of each thread.
ROUND, SEEDS = 50, 10_000_000
Groups = dict[tuple[int, ...], Any]


class Larger(Case):
    """A case, one of thirty of which has tensors of up to a million elements."""

    def count(self) -> int:
        return super().count() if self.draw.random() < 0.97 else self.draw.choice([200_001, 1_000_000])


def memory() -> float:
    """Return the memory of this process in MiB."""
    return int(re.findall(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


class Worker(threading.Thread):
    """A thread that calls collectives until the time is up, which rank 0 decides."""

    def __init__(self, seed: int, groups: Groups, seconds: float) -> None:
        super().__init__()
        self.seed, self.groups, self.seconds = seed, groups, seconds
        self.calls, self.error = 0, ""

    def run(self) -> None:
        began = time.monotonic()
        whole = self.groups[tuple(range(dist.get_world_size()))]
        go = torch.ones(1)
        while go:
            for _ in range(ROUND):
                case = Larger(self.seed + self.calls, self.groups)
                try:
                    case.kind(case)
                except Exception:
                    self.error = f"seed {self.seed + self.calls}, {case.kind.__name__}: {traceback.format_exc()}"
                    return
                self.calls += 1
            go.fill_(time.monotonic() - began < self.seconds)
            dist.broadcast(go, 0, group=whole)


def main() -> None:
    seconds, threads, first = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    size = dist.get_world_size()
    chosen = sorted({tuple(range(size)), (0, size - 1), tuple(range(1, size))})
    workers = [
        Worker(first + SEEDS * each, {ranks: dist.new_group(list(ranks)) for ranks in chosen}, seconds)
        for each in range(threads)
    ]
    for worker in workers:
        worker.start()
    samples = []
    while any(worker.is_alive() for worker in workers):
        samples.append(memory())
        time.sleep(0.1)
    quarter = max(1, len(samples) // 4)
    growth = min(samples[-quarter:]) - min(samples[quarter : 2 * quarter] or samples)
    for worker in workers:
        worker.join()
    errors = [worker.error for worker in workers if worker.error]
    if errors:
        sys.exit(errors[0])
    growths: list[Any] = [None] * size
    dist.all_gather_object(growths, growth)
    if dist.get_rank() == 0:
        print(json.dumps({"calls": sum(worker.calls for worker in workers), "growth": max(growths)}), flush=True)
    dist.destroy_process_group()


main()

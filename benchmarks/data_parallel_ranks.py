"""What one rank of ``benchmarks.data_parallel`` does; rank 0 writes what was measured as JSON to the file named last.

::

    mpiexec -n 2 python -m benchmarks.data_parallel_ranks ours|horovod|gloo FILE
    mpiexec -n 2 python -m benchmarks.data_parallel_ranks scaling FILE

Each way to average runs in processes of its own: Horovod's thread would take time from the others.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI  # before any framework

from hidl_workloads.data_parallel.buckets import Bucket
from hidl_workloads.data_parallel.choice import choose
from hidl_workloads.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.resnet50.torch_model import ResNet50

WORLD = MPI.COMM_WORLD
#: Bytes of float32, and how often they are averaged in a block.
SIZES = {4_000: 100, 1_000_000: 30, 100_000_000: 3}
BATCH = 8
_BLOCK = 2
Average = Callable[[torch.Tensor], None]


class Ours:
    """hidl_workloads.data_parallel."""

    def average_of(self, size: int) -> Average:
        """Average a gradient as a backward pass's hook does: into its place in a bucket, and from there."""
        allreduce = choose(WORLD, [Bucket((0,), (0,), size, "float32")], share=1 / WORLD.size)
        buffer = allreduce.buffer(size, "float32")
        place = torch.from_numpy(buffer)

        def average(tensor: torch.Tensor) -> None:
            place.copy_(tensor)
            allreduce.start(buffer)
            allreduce.finish()

        return average

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, DistributedOptimizer(optimizer, model, WORLD)


class Horovod:
    """Horovod with its MPI controller, as it comes."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()

    def average_of(self, size: int) -> Average:
        return lambda tensor: self._hvd.allreduce_(tensor, name=f"gradient of {size}")

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        named = model.named_parameters()
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._hvd.DistributedOptimizer(optimizer, named_parameters=named)


class Gloo:
    """PyTorch's DistributedDataParallel over gloo, as it comes."""

    def __init__(self) -> None:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29577")
        torch.distributed.init_process_group("gloo", rank=WORLD.rank, world_size=WORLD.size)

    def average_of(self, size: int) -> Average:
        return torch.distributed.all_reduce  # type: ignore[no-any-return]

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return torch.nn.parallel.DistributedDataParallel(model), optimizer


WAYS: dict[str, Callable[[], Any]] = {"ours": Ours, "horovod": Horovod, "gloo": Gloo}


def contender(name: str) -> dict[str, float]:
    """Median seconds of averaging each size, and of a training step on images of 64 pixels."""
    way = WAYS[name]()
    results = {}
    for size, times in SIZES.items():
        tensor = torch.ones(size // 4)
        average = way.average_of(len(tensor))
        results[str(size)] = _timed(partial(average, tensor), times)
    step = _training(64, way.distribute)
    results["step"] = _timed(step, 3)
    return results


def scaling(blocks: int = 7) -> dict[str, list[float]]:
    """Rates of ResNet-50 on images of 224 pixels, in images a second: both ranks alone, and both together, in turn.

    Alone, each process trains a model of its own at the same time as the other does: that is the limit.
    """
    alone, together = _training(224, lambda model, optimizer: (model, optimizer)), _training(224, Ours().distribute)
    rates: dict[str, list[float]] = {"alone": [], "together": []}
    alone()
    together()
    for _ in range(blocks):
        for name, step in (("alone", alone), ("together", together)):
            WORLD.Barrier()
            before = time.perf_counter()
            for _ in range(_BLOCK):
                step()
            own = _BLOCK * BATCH / (time.perf_counter() - before)
            rates[name].append(WORLD.allreduce(own) if name == "alone" else WORLD.size * WORLD.allreduce(own, MPI.MIN))
    return rates


def _training(pixels: int, distribute: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[], None]:
    torch.manual_seed(WORLD.rank)
    images = torch.randn(BATCH, 3, pixels, pixels).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (BATCH,))
    plain = ResNet50().to(memory_format=torch.channels_last)
    model, optimizer = distribute(plain, torch.optim.SGD(plain.parameters(), lr=0.01))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _timed(act: Callable[[], None], times: int) -> float:
    """Seconds of one time: the median over some blocks, each the slowest rank's mean.

    Nothing of MPI's comes between the times of a block: its waiting would hold the other ways' threads up.
    """
    for _ in range(2):
        act()
    blocks: list[float] = []
    for _ in range(5):
        WORLD.Barrier()
        before = time.perf_counter()
        for _ in range(times):
            act()
        blocks.append(WORLD.allreduce(time.perf_counter() - before, MPI.MAX) / times)
    return statistics.median(blocks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, file = sys.argv[1:]
    measured = scaling() if what == "scaling" else contender(what)
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(measured))

"""What one rank of ``benchmarks.data_parallel`` does; rank 0 writes what was measured as JSON to the file named last.

::

    mpiexec -n 2 python -m benchmarks.data_parallel_ranks mpi4py|horovod|gloo FILE
    mpiexec -n 2 python -m benchmarks.data_parallel_ranks small:mpi4py|small:horovod|small:gloo FILE
    mpiexec -n 2 python -m benchmarks.data_parallel_ranks scaling FILE

Each way to average (a backend of the workload resnet50) runs in processes of its own: Horovod's thread would take time
from the others.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from hidl_workloads import freed_memory
from hidl_workloads.image_networks import resnet50
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import torch_strategies
from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES, Gradient, plan
from hidl_workloads.training.data_parallel.choice import choose

WORLD = MPI.COMM_WORLD
#: Bytes of float32, and how often they are averaged in a block.
SIZES = {4_000: 100, 1_000_000: 30, 100_000_000: 3}
BATCH = 8
_BLOCK = 2
Average = Callable[[torch.Tensor], Any]


def _over_mpi(size: int) -> Average:
    """As a backward pass's hook does: into its place in a bucket, and from there."""
    buckets = plan([Gradient("all", size, "float32")], BUCKET_BYTES)
    allreduce = choose(WORLD, buckets, share=1 / WORLD.size)
    buffer = allreduce.buffer(size, "float32")
    place = torch.from_numpy(buffer)

    def average(tensor: torch.Tensor) -> None:
        place.copy_(tensor)
        allreduce.start(buffer)
        allreduce.finish()

    return average


def _horovod(size: int) -> Average:
    import horovod.torch as hvd

    return lambda tensor: hvd.allreduce_(tensor, name=f"gradient of {size}")


def _gloo(size: int) -> Average:
    from torch import distributed

    return lambda tensor: distributed.all_reduce(tensor)  # noqa: PLW0108 - its other arguments are not ours


WAYS: dict[str, Callable[[int], Average]] = {"mpi4py": _over_mpi, "horovod": _horovod, "gloo": _gloo}


def contender(backend: Any) -> dict[str, float]:
    """Median seconds of a training step on images of 64 pixels, and of averaging each size."""
    results = {"step": _timed(_training(Resnet50(backend=backend, image_size=64)), 3)}
    for size, times in SIZES.items():
        tensor = torch.ones(size // 4)
        results[str(size)] = _timed(partial(WAYS[backend](len(tensor)), tensor), times)
    return results


def small(backend: Any) -> float:
    """Median seconds of a training step of many small layers: what each parameter costs, whatever its size."""
    torch.manual_seed(WORLD.rank)
    plain = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(40)))
    strategy = torch_strategies.make(WORLD, plain, partial(torch.optim.SGD, lr=0.01), Resnet50(backend=backend))
    inputs = torch.randn(BATCH, 16)

    def step() -> None:
        strategy.optimizer.zero_grad()
        strategy.model(inputs).square().mean().backward()
        strategy.optimizer.step()

    return _timed(step, 50)


def scaling(blocks: int = 9) -> dict[str, list[float]]:
    """Rates of ResNet-50 on images of 224 pixels, in images a second, in turn.

    ``alone``, each process trains a model of its own at the same time as the other does: that is the limit.
    ``in_step``, they wait for each other before each step as well: what any training loses that is synchronous.
    ``together``, they train one model.
    """
    alone, together = _training(Resnet50(), MPI.COMM_SELF), _training(Resnet50())

    def in_step() -> None:
        WORLD.Barrier()
        alone()

    ways = {"alone": alone, "in_step": in_step, "together": together}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for step in ways.values():
        step()
    for _ in range(blocks):
        for name, step in ways.items():
            WORLD.Barrier()
            before = time.perf_counter()
            for _ in range(_BLOCK):
                step()
            own = _BLOCK * BATCH / (time.perf_counter() - before)
            rates[name].append(WORLD.allreduce(own) if name == "alone" else WORLD.size * WORLD.allreduce(own, MPI.MIN))
    return rates


def _training(parameters: Resnet50, communicator: MPI.Comm = WORLD) -> Callable[[], None]:
    torch.manual_seed(WORLD.rank)
    side = parameters.image_size
    images = torch.randn(BATCH, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (BATCH,))
    plain = resnet50().to(memory_format=torch.channels_last)
    backend = torch_strategies.make(communicator, plain, partial(torch.optim.SGD, lr=0.01), parameters)
    model, optimizer = backend.model, backend.optimizer

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
    freed_memory.keep()
    what, file = sys.argv[1:]
    kind, _, name = what.rpartition(":")
    measured = scaling() if what == "scaling" else small(name) if kind == "small" else contender(name)
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(measured))

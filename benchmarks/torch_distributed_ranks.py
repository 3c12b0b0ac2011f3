"""Time collectives or training steps of each way in turn; rank 0 writes the blocks' seconds as JSON to the last file.

::

    mpiexec -n 2 python -m benchmarks.torch_distributed_ranks collectives|training FILE

All ways live in the same processes: a drift of the machine's speed cancels.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import SMALL
from hidl_workloads import freed_memory
from hidl_workloads.image_networks import resnet50
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training import torch_strategies

WORLD = MPI.COMM_WORLD
#: Bytes, calls in a block.
SIZES = {4_000: 200, 64_000: 100, 1_000_000: 30, 25_000_000: 4, 100_000_000: 2}
_LARGE = 25_000_000
BLOCKS = 1 if SMALL else 9
_WIDTH, _LAYERS = 1024, 4
_BATCH = 8
Act = Callable[[], Any]


def collectives(groups: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of one call of each way, by operation and bytes."""
    found = {}
    for size, times in SIZES.items():
        tensor = torch.ones(size // 4)
        ways: dict[str, Act] = {name: partial(dist.all_reduce, tensor, group=group) for name, group in groups.items()}
        ways["mpi4py"] = partial(WORLD.Allreduce, MPI.IN_PLACE, tensor.numpy())
        found[f"all_reduce {size}"] = _in_turn(ways, times)
        if SMALL:
            return found
    part = torch.ones(_LARGE // 4 // WORLD.size)
    whole = torch.ones(part.numel() * WORLD.size)
    for name, call, tensors in (
        ("all_gather", dist.all_gather_into_tensor, (whole, part)),
        ("reduce_scatter", dist.reduce_scatter_tensor, (part, whole)),
    ):
        ways = {backend: partial(call, *tensors, group=group) for backend, group in groups.items()}
        found[f"{name} {_LARGE}"] = _in_turn(ways, 4)
    return found


def training(groups: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of one step of each way: FSDP2, and DDP beside hidl's own averager."""
    ways = {name: _step(_sharded(group), torch.randn(_BATCH, _WIDTH)) for name, group in groups.items()}
    found = {"fsdp2": _in_turn(ways, 3)}
    images = torch.randn(_BATCH, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    ways = {}
    for name, group in groups.items():
        model = DistributedDataParallel(_resnet(), process_group=group, broadcast_buffers=False)
        ways[name] = _step(model, images)
    model = _resnet()
    strategy = torch_strategies.make(WORLD, model, partial(torch.optim.SGD, lr=0.01), Resnet50())
    ways["averager"] = _step(strategy.model, images, strategy.optimizer)
    found["ddp"] = _in_turn(ways, 2)
    strategy.close()
    return found


def _resnet() -> torch.nn.Module:
    torch.manual_seed(0)
    return resnet50().to(memory_format=torch.channels_last)


def _sharded(group: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(torch.nn.Sequential(*layers), mesh=mesh)


def _step(model: torch.nn.Module, inputs: torch.Tensor, optimizer: Any = None) -> Act:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def _in_turn(ways: dict[str, Act], times: int) -> dict[str, list[float]]:
    """Return the seconds of one call, block by block: the slowest rank's mean.

    Nothing of MPI's runs during the times of a block: its waiting would hold the other ways' threads up.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for block in range(BLOCKS + 1):
        for name, act in ways.items():
            WORLD.Barrier()
            before = time.perf_counter()
            for _ in range(times):
                act()
            seconds = WORLD.allreduce(time.perf_counter() - before, MPI.MAX) / times
            if block:  # the first one warms up
                found[name].append(seconds)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    freed_memory.keep()
    what, file = sys.argv[1:]
    dist.init_process_group("mpi")
    groups = {"mpi": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    measured = collectives(groups) if what == "collectives" else training(groups)
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(measured))
    dist.destroy_process_group()

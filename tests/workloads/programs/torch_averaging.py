"""What data-parallel training with PyTorch does to small models on these ranks, written as JSON to argv[1].

Every rank trains on its part of a joint batch; a reference trains on the whole of it in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from hidl_workloads.training.data_parallel.torch_gradients import GradientAverager
from hidl_workloads.training.data_parallel.torch_state import broadcast, named_weights
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
PER_RANK = 4
TINY = 1000  # bytes: several buckets even in a small model


class Net(nn.Module):
    """Convolutions and linear layers without BatchNorm, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.frozen = nn.Conv2d(8, 8, 1).requires_grad_(False)
        self.head = nn.Linear(8, 5)
        self.spare = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, spare: bool) -> torch.Tensor:
        h = torch.relu(self.frozen(torch.relu(self.conv(x)))).mean((2, 3))
        return self.head(h) + self.spare(h) if spare else self.head(h)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    n = PER_RANK * WORLD.size
    return torch.randn(n, 3, 6, 6, generator=generator), torch.randint(5, (n,), generator=generator)


def model(seed: int, dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(seed)
    return Net().to(dtype)


def train(
    net: Net, x: torch.Tensor, y: torch.Tensor, averager: Any = None, *, spare: bool = True, steps: int = 3
) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(x, spare), y).backward()
        if averager is not None:
            averager.finish()
        optimizer.step()


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[PER_RANK * WORLD.rank : PER_RANK * (WORLD.rank + 1)]


def difference(one: Net, other: Net) -> float:
    """The largest difference of any weight, on any rank."""
    own = max(float((a - b).abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    return WORLD.allreduce(own, MPI.MAX)


def joint_difference(dtype: torch.dtype, bucket_bytes: int) -> float:
    x, y = batch()
    x = x.to(dtype)
    net, reference = model(0, dtype), model(0, dtype)
    averager = GradientAverager(WORLD, net, bucket_bytes)
    train(net, mine(x), mine(y), averager)
    averager.close()
    train(reference, x, y)
    return difference(net, reference)


def checksums(average: bool) -> list[str]:
    x, y = batch()
    net = model(WORLD.rank)
    broadcast(WORLD, net)
    averager = GradientAverager(WORLD, net, TINY) if average else None
    train(net, mine(x), mine(y), averager)
    return WORLD.allgather(checksum(named_weights(net)))


def broadcast_difference() -> float:
    net = model(WORLD.rank)
    broadcast(WORLD, net)
    return difference(net, model(0))


def unused_on_some_ranks_difference() -> float:
    """Only rank 0 uses the spare layer: its gradient must be rank 0's, divided by the number of ranks."""
    x, y = batch()
    net, reference = model(0), model(0)
    averager = GradientAverager(WORLD, net, TINY)
    train(net, mine(x), mine(y), averager, spare=WORLD.rank == 0, steps=1)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    losses = [
        nn.functional.cross_entropy(reference(x[i : i + PER_RANK], i == 0), y[i : i + PER_RANK])
        for i in range(0, len(y), PER_RANK)
    ]
    (sum(losses) / WORLD.size).backward()
    optimizer.step()
    return difference(net, reference)


def unused_everywhere() -> bool:
    """Nobody uses the spare layer: does it have a gradient?"""
    x, y = batch()
    net = model(0)
    averager = GradientAverager(WORLD, net, TINY)
    train(net, mine(x), mine(y), averager, spare=False)
    return net.spare.weight.grad is not None


def error_of_bfloat16_weights() -> str:
    try:
        GradientAverager(WORLD, model(0, torch.bfloat16), TINY)
    except TypeError as error:
        return str(error)
    return "no error"


def gradients_have_memory_of_their_own() -> bool:
    x, y = batch()
    net = model(0)
    train(net, mine(x), mine(y), GradientAverager(WORLD, net, 2**30), steps=1)
    memory = {w.grad.untyped_storage().data_ptr() for w in net.parameters() if w.requires_grad}
    return len(memory) == sum(w.requires_grad for w in net.parameters())


def one_rank_is_left_alone() -> bool:
    x, y = batch()
    net, reference = model(0), model(0)
    train(net, x, y, GradientAverager(MPI.COMM_SELF, net, TINY))
    train(reference, x, y)
    return difference(net, reference) == 0.0


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {
        "joint_float32": joint_difference(torch.float32, TINY),
        "joint_float32_one_bucket": joint_difference(torch.float32, 2**30),
        "joint_float64": joint_difference(torch.float64, TINY),
        "broadcast": broadcast_difference(),
        "checksums": checksums(average=True),
        "checksums_without_average": checksums(average=False),
        "unused_on_some_ranks": unused_on_some_ranks_difference(),
        "unused_everywhere": unused_everywhere(),
        "bfloat16_weights": error_of_bfloat16_weights(),
        "own memory": gradients_have_memory_of_their_own(),
        "one_rank_alone": one_rank_is_left_alone(),
    }
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))

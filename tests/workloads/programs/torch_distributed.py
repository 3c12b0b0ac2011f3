"""What the optimizer for PyTorch does on these ranks, with every kind of sum, written as JSON to argv[1].

With ``sums`` as argv[2], only the kinds of sum are tried.
Every rank trains on its part of a joint batch; a reference trains on the whole of it in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch_averaging import TINY, Net, batch, difference, mine, model

from hidl_workloads.training.data_parallel.allreduce import Allreduce
from hidl_workloads.training.data_parallel.compression import CompressedAllreduce
from hidl_workloads.training.data_parallel.shared_memory import SharedMemoryAllreduce, node_of, usable
from hidl_workloads.training.data_parallel.torch_buffers import torch_halves
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.torch_state import named_weights
from hidl_workloads.training.data_parallel.weights import checksum

WORLD = MPI.COMM_WORLD
LARGE = 300_001  # elements: more than shared memory's least, and no multiple of any number of ranks here


def losses(net: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(net(x, spare=False), y)


def momentum(net: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net: Net, optimizer: Any, x: torch.Tensor, y: torch.Tensor, *, passes: int = 1, clip: float = 0) -> None:
    """Three steps; each of them in ``passes`` parts of the batch, and with clipped gradients if ``clip``."""
    for _ in range(3):
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(passes), y.chunk(passes), strict=True):
            (losses(net, part, labels) / passes).backward()
        if clip:
            if hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


def joint(passes: int = 1, clip: float = 0, **options: Any) -> dict[str, Any]:
    """The difference from a single process, and whether all ranks have the same weights.

    The spare layer is never used, which a single process leaves as it is, and another layer is frozen.
    """
    x, y = batch()
    net, reference = model(WORLD.rank), model(0)
    optimizer = DistributedOptimizer(momentum(net), net, WORLD, bucket_bytes=TINY, accumulate=passes, **options)
    train(net, optimizer, mine(x), mine(y), passes=passes, clip=clip)
    train(reference, momentum(reference), x, y, clip=clip)
    result = {"difference": difference(net, reference), "checksums": WORLD.allgather(checksum(named_weights(net)))}
    optimizer.close()
    return result


def scheduled_and_resumed() -> float:
    """A step, the state into a fresh optimizer on rank 0 only, another step: as one process that goes on."""
    x, y = batch()
    net, reference = model(0), model(0)
    first, own = momentum(net), momentum(reference)
    optimizer = DistributedOptimizer(first, net, WORLD)
    scheduler, other = (torch.optim.lr_scheduler.StepLR(each, 1) for each in (optimizer, own))
    for stepper, each, part, labels in ((optimizer, net, mine(x), mine(y)), (own, reference, x, y)):
        stepper.zero_grad()
        losses(each, part, labels).backward()
        stepper.step()
    scheduler.step(), other.step()
    state = optimizer.state_dict()
    optimizer.close()
    fresh = momentum(net)
    if WORLD.rank == 0:
        fresh.load_state_dict(state)
    optimizer = DistributedOptimizer(fresh, net, WORLD)
    train(net, optimizer, mine(x), mine(y))
    train(reference, own, x, y)
    optimizer.close()
    return difference(net, reference)


def closures_difference() -> float:
    """The scheduler is older than the distributed optimizer, and the step gets a closure, by turns."""
    x, y = batch()
    net, reference = model(0), model(0)
    steppers = [momentum(net), momentum(reference)]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1) for each in steppers]
    DistributedOptimizer(steppers[0], net, WORLD)
    parts = [(net, mine(x), mine(y)), (reference, x, y)]
    for number in range(4):
        for stepper, scheduler, (each, part, labels) in zip(steppers, schedulers, parts, strict=True):

            def closure(stepper: Any = stepper, each: Any = each, part: Any = part, labels: Any = labels) -> Any:
                stepper.zero_grad()
                loss = losses(each, part, labels)
                loss.backward()
                return loss

            if number % 2:
                stepper.step(closure)
            else:
                closure()
                stepper.step()
            scheduler.step()
    steppers[0].close()
    return difference(net, reference)


def skipped_step_difference() -> float:
    """Averaged, but not applied: what comes next is averaged as well."""
    x, y = batch()
    net, reference = model(0), model(0)
    optimizer = DistributedOptimizer(momentum(net), net, WORLD)
    losses(net, mine(x) * 100, mine(y)).backward()
    optimizer.synchronize()
    net.zero_grad()
    train(net, optimizer, mine(x), mine(y))
    train(reference, momentum(reference), x, y)
    optimizer.close()
    return difference(net, reference)


def kept_zeros_difference() -> float:
    """zero_grad(set_to_none=False) keeps the gradients' memory."""
    x, y = batch()
    net, reference = model(0), model(0)
    optimizer = DistributedOptimizer(momentum(net), net, WORLD)
    for each, stepper, part, labels in ((net, optimizer, mine(x), mine(y)), (reference, momentum(reference), x, y)):
        for _ in range(3):
            stepper.zero_grad(set_to_none=False)
            losses(each, part, labels).backward()
            stepper.step()
    optimizer.close()
    return difference(net, reference)


def summed_gradient_ratio() -> float:
    x, y = batch()
    net = model(0)
    optimizer = DistributedOptimizer(momentum(net), net, WORLD, average=False)
    losses(net, mine(x), mine(y)).backward()
    optimizer.synchronize()
    summed = net.head.bias.grad.clone()
    optimizer.close()
    net.zero_grad()
    losses(net, x, y).backward()
    return float((summed / net.head.bias.grad).mean())


def error_of(build: Any) -> str:
    try:
        build()
    except (TypeError, ValueError, FloatingPointError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def other_model() -> None:
    net = nn.Linear(2 + WORLD.rank, 2)
    DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), nn.Sequential(net), WORLD)


def overflow() -> dict[str, Any]:
    """One rank's gradient is beyond float16; afterwards training goes on."""
    net = model(0)
    before = checksum(named_weights(net))
    optimizer = DistributedOptimizer(momentum(net), net, WORLD, compression="float16")
    x, y = batch()
    (losses(net, mine(x), mine(y)) * (1e9 if WORLD.rank == 0 else 1)).backward()
    error = error_of(optimizer.step)
    unchanged = checksum(named_weights(net)) == before
    train(net, optimizer, mine(x), mine(y))
    sums = WORLD.allgather(checksum(named_weights(net)))
    return {"errors": WORLD.allgather(error), "unchanged": unchanged, "checksums": sums}


def sums() -> dict[str, Any]:
    """Every kind of sum of random numbers: the largest error over its bound, on any rank, and whether all are equal."""
    node = node_of(WORLD)
    kinds = {
        "mpi": Allreduce(WORLD),
        "shared memory": SharedMemoryAllreduce(WORLD, node),
        "float16": CompressedAllreduce(WORLD, torch_halves("float16")),
        "bfloat16": CompressedAllreduce(WORLD, torch_halves("bfloat16")),
    }
    if WORLD.size % 2 == 0:  # as if there were two nodes
        half = WORLD.Split(2 * WORLD.rank // WORLD.size)
        kinds["two nodes"] = SharedMemoryAllreduce(WORLD, half)
        kinds["two nodes, bfloat16"] = SharedMemoryAllreduce(
            WORLD, half, lambda c: CompressedAllreduce(c, torch_halves("bfloat16")), compressed="bfloat16"
        )
    results = {name: _error_over_bound(kind, name) for name, kind in kinds.items()}
    for kind in kinds.values():
        kind.close()
    results["usable"] = usable(WORLD, node, 1000) == (WORLD.size > 1)
    return results


def _error_over_bound(kind: Allreduce, name: str) -> list[Any]:
    roundoff = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(name.rsplit(maxsplit=1)[-1], 2.0**-22)
    tiny = 2.0**-25 if name == "float16" else 0
    random = np.random.default_rng(WORLD.rank)
    worst, digests = 0.0, []
    totals = [kind.buffer(size, "float32") for size in (LARGE, 7, 0)]
    for placed in (False, True, False, True):
        # From subnormal numbers of float16 to its largest ones: 1e-9 to 1e4.
        parts = [
            (random.standard_normal(len(total)) * 10 ** random.uniform(-9, 3, len(total))).astype(np.float32)
            for total in totals
        ]
        for total, part in zip(totals, parts, strict=True):
            if placed:
                kind.place(total, 0, part[:5])
                kind.place(total, 5, part[5:])
                kind.start(total, kind.placed_steps(total))
            else:
                total[:] = part
                kind.start(total)
        kind.progress()
        kind.finish()
        for buffer, part in zip(totals, parts, strict=True):
            total = buffer.copy()
            if placed:
                kind.collect(buffer, 0, total[:7])
                kind.collect(buffer, 7, total[7:])
            everywhere = np.array(WORLD.allgather(part), np.float64).reshape(WORLD.size, -1)
            exact = everywhere.sum(0)
            bound = roundoff * (np.abs(everywhere).sum(0) + np.abs(exact)) * (1 + 2.0**-7)
            error = np.abs(total - exact) / (bound + (WORLD.size + 1) * tiny)
            worst = max(worst, float(error.max(initial=0)))
            digests.append(checksum([("total", total)]))
    return [WORLD.allreduce(worst, MPI.MAX), len(set(WORLD.allgather(tuple(digests)))) == 1]


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {"sums": sums()}
    if sys.argv[2:] != ["sums"]:
        results |= {
            "joint": joint(),
            "through MPI": joint(share_memory=False),
            "accumulated": joint(passes=2),
            "clipped": joint(clip=0.01),
            "float16": joint(compression="float16"),
            "bfloat16": joint(compression="bfloat16"),
            "scheduled and resumed": scheduled_and_resumed(),
            "closures": closures_difference(),
            "skipped step": skipped_step_difference(),
            "kept zeros": kept_zeros_difference(),
            "summed": summed_gradient_ratio(),
            "other model": error_of(other_model),
            "no compression": error_of(lambda: joint(compression="int8")),
            "no passes": error_of(lambda: joint(passes=0)),
            "overflow": overflow(),
        }
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))

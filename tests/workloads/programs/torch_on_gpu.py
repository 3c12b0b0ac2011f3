"""Trains small models on the host, and by the ways of gradients on a simulated GPU; writes the checksums as JSON.

::

    python -m hidl_workloads.world torch_on_gpu FILE [BUG PATH]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import simulated_gpu
import torch
from mpi4py import MPI
from torch_runs import WORLD, loss_of, momentum, perceptron

from hidl_workloads import mpi_library
from hidl_workloads.training.data_parallel import torch_devices
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.torch_state import named_weights
from hidl_workloads.training.data_parallel.weights import checksum

WIDTH = 200
CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"make": torch.optim.Adam},
    "one bucket": {"bucket_bytes": 2**30},
    "small buckets": {"bucket_bytes": 100},
    "through MPI": {"share_memory": False},
    "accumulated": {"accumulate": 2},
    "float16": {"compression": "float16"},
    "bfloat16": {"compression": "bfloat16"},
    "sums": {"average": False},
}


def train(case: dict[str, Any], buffers: str, communicator: MPI.Intracomm = WORLD) -> str:
    """Train four steps; return the checksum of the weights, and fail where ranks differ."""
    torch.manual_seed(WORLD.rank)
    options = {"bucket_bytes": 100_000} | case
    make: Callable[..., Any] = options.pop("make", momentum)
    model = perceptron(WIDTH)
    plain = make(model.parameters(), lr=0.01)
    optimizer = DistributedOptimizer(plain, model, communicator, **options, gpu_buffers=buffers)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(case.get("accumulate", 1)):
            loss_of(model, torch.randn(4, 5)).backward()
        optimizer.step()
    found: str = checksum(named_weights(model))
    optimizer.close()
    return found


def raising(buffers: str) -> list[str]:
    """Replace a gradient by a sparse one on the last rank: its hook raises; return what each rank is told."""
    model = perceptron()
    optimizer = DistributedOptimizer(momentum(model.parameters()), model, WORLD, gpu_buffers=buffers)
    averager = optimizer._averager
    go_on = averager._go_on

    def fail(weight: torch.Tensor) -> None:
        go_on(weight)
        if WORLD.rank == WORLD.size - 1:
            raise ArithmeticError("the averager's hook raises")

    averager._go_on = fail
    try:
        loss_of(model, torch.randn(4, 5)).backward()
        told = "nothing"
    except (ArithmeticError, RuntimeError) as error:
        told = f"{type(error).__name__}: {error}"
    averager._go_on = go_on
    optimizer.zero_grad()
    loss_of(model, torch.randn(4, 5)).backward()
    optimizer.step()
    equal = len(set(WORLD.allgather(checksum(named_weights(model))))) == 1
    optimizer.close()
    return [*WORLD.allgather(told), "equal" if equal else "different"]


class OpenMpi(MPI.Intracomm):
    """A communicator of a GPU-aware Open MPI, whose non-blocking collectives crash on memory of the device."""

    def Iallreduce(self, send: Any, receive: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        assert not isinstance(receive, torch_devices.DeviceMemory)
        return super().Iallreduce(send, receive, op)


def main() -> None:
    file, *planted = sys.argv[1:]
    cases = {"sgd": CASES["sgd"]} if planted else CASES
    found: dict[str, Any] = {name: {"cpu": WORLD.allgather(train(case, "auto"))} for name, case in cases.items()}
    simulated_gpu.install()
    simulated_gpu.BUGS.update(planted[:1])
    for name, case in cases.items():
        for buffers in planted[1:] or ("staged", "auto"):
            found[name][buffers] = WORLD.allgather(train(case, buffers))
        if not planted:
            with mock.patch.object(mpi_library, "version", return_value="Open MPI v4.1.4"):
                found[name]["open mpi"] = WORLD.allgather(train(case, "auto", OpenMpi(WORLD)))
    if not planted:
        found["raising"] = {buffers: raising(buffers) for buffers in ("staged", "auto")}
    del torch_devices.KINDS["cpu"]
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

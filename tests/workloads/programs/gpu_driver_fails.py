"""The driver of the last rank's simulated GPU fails in the middle of a sum; prints what each rank is told, and then.

::

    python -m hidl_workloads.world gpu_driver_fails PATH DIRECTORY

No rank ends before all are told: each leaves a file in DIRECTORY then.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import simulated_gpu
import torch
from torch_runs import WORLD, loss_of, momentum, perceptron

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer


def fail(*_: Any) -> NoReturn:
    raise ArithmeticError("the driver fails")


def main() -> None:
    device = simulated_gpu.install()
    model = perceptron(200).to(device)
    plain = momentum(model.parameters(), lr=0.01)
    optimizer = DistributedOptimizer(plain, model, WORLD, bucket_bytes=100_000, gpu_buffers=sys.argv[1])
    if WORLD.rank == WORLD.size - 1:
        simulated_gpu.Simulated.export = fail  # type: ignore[method-assign]
        simulated_gpu.Simulated.upload = fail  # type: ignore[method-assign]
    for step in ("first", "second"):
        try:
            optimizer.zero_grad()
            loss_of(model, torch.randn(4, 5).to(device)).backward()
            optimizer.step()
        except (ArithmeticError, RuntimeError) as error:
            print(f"rank {WORLD.rank}, {step}: {error}", flush=True)
    directory = Path(sys.argv[2])
    (directory / str(WORLD.rank)).touch()
    while len(list(directory.iterdir())) < WORLD.size:
        time.sleep(0.05)


if __name__ == "__main__":
    main()

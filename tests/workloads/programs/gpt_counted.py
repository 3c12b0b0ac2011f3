"""Train ``gpt`` and add the first token of each sequence that this rank trains on to the file OUT.RANK: OUT WORDS..."""

from __future__ import annotations

import sys
from pathlib import Path

from mpi4py import MPI

from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training import program
from hidl_workloads.training.model import Batch
from hidl_workloads.training.torch_trainer import TorchTrainer

FEED = TorchTrainer.feed
OUT = Path(f"{sys.argv.pop(1)}.{MPI.COMM_WORLD.rank}")


def feed(trainer: TorchTrainer, batch: Batch) -> None:
    with OUT.open("a") as file:
        file.write(" ".join(map(str, batch.inputs[:, 0])) + "\n")
    FEED(trainer, batch)


TorchTrainer.feed = feed  # type: ignore[method-assign]
program.main("gpt", Gpt, GPT)

"""Train ``gpt`` on data, and write the phases in which ranks read and exchange batches as JSON to OUT: OUT WORDS..."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hidl_workloads import phases
from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training import program, torch_parallel
from hidl_workloads.training.data import BatchReader
from hidl_workloads.training.model import Batch

OUT = Path(sys.argv.pop(1))
JOINED, TAKE = torch_parallel.C10d._joined, BatchReader.take

current: list[str] = []
found: dict[str, list[list[str]]] = {"read": [], "exchanged": []}


@contextmanager
def phase(name: str) -> Iterator[None]:
    current.append(name)
    try:
        yield
    finally:
        current.pop()


def joined(strategy: Any, *arguments: Any) -> Any:
    found["exchanged"].append(list(current))
    return JOINED(strategy, *arguments)


def take(reader: BatchReader) -> Batch:
    found["read"].append(list(current))
    return TAKE(reader)


phases.phase = phase  # type: ignore[assignment]
torch_parallel.C10d._joined = joined  # type: ignore[method-assign]
BatchReader.take = take  # type: ignore[method-assign]
program.main("gpt", Gpt, GPT)
if MPI.COMM_WORLD.rank == 0:
    OUT.write_text(json.dumps(found))

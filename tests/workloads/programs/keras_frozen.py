"""Compare 40 frozen variables of a megabyte on all ranks: OUT.

Written as JSON to OUT: for variables that are equal, and of which one differs by rounding or by more, the number of
broadcasts, the error, and the largest memory of the comparison on any rank in megabytes.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.keras_optimizer import _require_close

WORLD = MPI.COMM_WORLD
COUNT, MEGABYTE = 40, 2**20


@dataclass
class Variable:
    path: str
    value: float

    def numpy(self) -> NDArray[np.float32]:
        return np.full(MEGABYTE // 4, self.value, np.float32)


class Counted:
    """The world, and the number of its broadcasts."""

    broadcasts = 0

    def bcast(self, value: Any) -> Any:
        self.broadcasts += 1
        return WORLD.bcast(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(WORLD, name)


def compare(factor: float) -> list[Any]:
    """Multiply one variable of the last rank by ``factor``, and compare all."""
    variables = [Variable(f"layer/{number}", 1 + number) for number in range(COUNT)]
    if WORLD.rank == WORLD.size - 1:
        variables[7].value *= factor
    counted, error = Counted(), ""
    tracemalloc.start()
    try:
        _require_close(counted, variables, "advice")  # type: ignore[arg-type]
    except ValueError as found:
        error = str(found)
    peak = tracemalloc.get_traced_memory()[1] / MEGABYTE
    tracemalloc.stop()
    return [counted.broadcasts, error, WORLD.allreduce(peak, MPI.MAX)]


results = {name: compare(factor) for name, factor in (("equal", 1), ("rounded", 1 + 1e-6), ("far", 1.5))}
if WORLD.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))

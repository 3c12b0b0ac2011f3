"""The programs of keras_oracle as they are for one process, in the scope of hyparflow: ``OUT PARTITIONS REPLICAS``.

Written as JSON to OUT: for each the largest difference from one process, or what was raised on each rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hyparflow
import keras
from errors import error_of
from keras_oracle import PROGRAMS, WORLD, difference
from mpi4py import MPI


def compare(name: str, partitions: int, replicas: int) -> Any:
    seen = []

    def act() -> None:
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        seen.append(PROGRAMS[name](True))

    def distributed() -> None:
        with hyparflow.Strategy(partitions, replicas, 2, costs="estimated").scope():
            act()

    errors = WORLD.allgather(error_of(distributed))
    if set(errors) != {"no error"}:
        return errors
    act()
    # The optimizer's variables are those of this rank's partition, under other names.
    both = [pair for pair in zip(*seen, strict=True) if not isinstance(pair[0], dict)]
    return WORLD.allreduce(max(difference(*pair) for pair in both), MPI.MAX)


if __name__ == "__main__":
    layout = int(sys.argv[2]), int(sys.argv[3])
    # What a program does with gradients of its own is not hyparflow's.
    results = {name: compare(name, *layout) for name in PROGRAMS if name != "other gradients in each step"}
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))

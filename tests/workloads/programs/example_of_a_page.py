"""A program of a page, CODE, on ranks, and in one process on the joint batches of all ranks: ``OUT CODE HARNESS``.

Written as JSON to OUT: the largest difference of weights and metrics on any rank between the two, and between ranks and
a training without averages on each rank's own batches; the files that rank 0 writes, and those of the others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
MODULES = "hidl_workloads.training.data_parallel"
KERAS_BATCH = 32
"""Default arguments of ``fit``."""


def ran(code: str, seed: Callable[[], Any]) -> dict[str, Any]:
    """Return the names that ``code`` leaves."""
    names: dict[str, Any] = {"__name__": "__main__"}
    seed()
    exec(compile(code, "page.py", "exec"), names)
    return names


def with_torch(code: str) -> list[list[Any]]:
    """Return what is seen on ranks, in one process and without averages."""
    import torch

    from hidl_workloads.training.data_parallel import torch_optimizer

    draw = torch.randn
    generators = [torch.Generator().manual_seed(rank) for rank in range(WORLD.size)]

    def joint(*shape: int, generator: Any) -> Any:
        return torch.cat([draw(*shape, generator=each) for each in generators])

    def seen(rank: int) -> list[Any]:
        names = ran(code, lambda: torch.manual_seed(rank))
        return [each.detach().numpy() for each in names["model"].parameters()]

    found = [seen(WORLD.rank)]
    with patch.object(torch_optimizer, "DistributedOptimizer", lambda optimizer, model: optimizer):
        with patch.object(torch, "randn", joint):
            found.append(seen(0))
        return [*found, seen(0)]


def with_keras(code: str) -> list[list[Any]]:
    """Return what is seen on ranks, in one process and without averages; samples are not shuffled."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    fit = keras.Model.fit
    samples: list[Any] = []

    def in_order(model: Any, x: Any, y: Any, **options: Any) -> Any:
        samples.append((x, y))
        return fit(model, x, y, **options, shuffle=False)

    def joint(model: Any, x: Any, y: Any, **options: Any) -> Any:
        ranks = zip(*WORLD.allgather(samples[0]), strict=True)
        parts = [np.stack([each.reshape(-1, KERAS_BATCH, *each.shape[1:]) for each in one], 1) for one in ranks]
        x, y = (part.reshape(-1, *part.shape[3:]) for part in parts)
        return fit(model, x, y, KERAS_BATCH * WORLD.size, **options, shuffle=False)

    def seen(rank: int) -> list[Any]:
        model = ran(code, lambda: keras.utils.set_random_seed(rank))["model"]
        return [*model.get_weights(), *map(np.array, model.history.history.values())]

    with patch.object(keras.Model, "fit", in_order):
        found = [seen(WORLD.rank)]
    with _keras_without_averages(keras):
        for how in (joint, in_order):
            with patch.object(keras.Model, "fit", how):
                found.append(seen(0))
    return found


def with_model(code: str) -> list[list[Any]]:
    """Return the same of a ``Model`` for the loop of hidl_workloads, which trains on one batch in all steps."""
    from hidl_workloads import arguments
    from hidl_workloads.training import program
    from hidl_workloads.training.model import Batch

    found: list[tuple[Any, ...]] = []
    with patch.object(program, "main", lambda *described: found.append(described)):
        ran(code, lambda: None)
    ((_, kind, make),) = found
    parameters = arguments.parse(kind, ["--batch=8", "--warmup=0", "--steps=20"])
    model = make(parameters)
    batches = [program.rank_batch(model, parameters.seed, rank) for rank in range(WORLD.size)]
    joint = Batch(*(np.concatenate([getattr(each, part) for each in batches]) for part in ("inputs", "targets")))

    def seen(communicator: MPI.Comm, batch: Batch) -> list[Any]:
        with patch.object(program, "rank_batch", lambda *_: batch):
            trainer = program.make_trainer(communicator, model, parameters)
        program.Course(communicator, trainer, model, parameters).train()
        return [np.array(weight) for _, weight in trainer.weights()]

    own = batches[WORLD.rank]
    return [seen(WORLD, own), seen(MPI.COMM_SELF, joint), seen(MPI.COMM_SELF, own)]


@contextmanager
def _keras_without_averages(keras: Any) -> Iterator[None]:
    callbacks = dict.fromkeys(
        ("AverageMetrics", "AverageStatistics", "BroadcastInitialState"), keras.callbacks.Callback
    )
    with patch.multiple(f"{MODULES}.keras_optimizer", DistributedOptimizer=lambda optimizer: optimizer, **callbacks):
        yield


HARNESSES = {"keras": with_keras, "model": with_model, "torch": with_torch}


def largest(one: list[Any], other: list[Any]) -> float:
    """The largest difference on any rank."""
    own = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other, strict=True))
    return float(WORLD.allreduce(own, MPI.MAX))


if __name__ == "__main__":
    output, program = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).read_text()
    own = output.with_name(f"rank-{WORLD.rank}")
    own.mkdir()
    os.chdir(own)
    ranks, alone, apart = HARNESSES[sys.argv[3]](program)
    result = {"difference": largest(ranks, alone), "without averages": largest(ranks, apart)}
    if WORLD.rank == 0:
        output.write_text(json.dumps(result | {"saved": [each.name for each in Path().iterdir()]}))

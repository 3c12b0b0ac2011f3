"""Rank 0 does less than the others, in the way that argv[1] names."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from mpi4py import MPI
from torch_runs import FEATURES, WORLD, distributed, loss_of, perceptron

from hidl_workloads.training.data_parallel.torch_state import named_state
from hidl_workloads.training.data_parallel.weights import checksum

MODEL = perceptron()
OPTIMIZER = distributed(MODEL)


def backward() -> None:
    OPTIMIZER.zero_grad()
    loss_of(MODEL, torch.ones(2, FEATURES)).backward()


def train(steps: int) -> None:
    for _ in range(steps):
        backward()
        OPTIMIZER.step()


def ends() -> None:
    train(3 if WORLD.rank == 0 else 4)


def ends_after_a_backward_pass() -> None:
    train(3)
    backward()
    if WORLD.rank:
        OPTIMIZER.step()


def raises() -> None:
    train(2)
    if WORLD.rank == 0:
        raise ArithmeticError("not this batch")
    train(2)


def skips_a_step() -> None:
    for step in range(4):
        backward()
        if step != 2 or WORLD.rank:
            OPTIMIZER.step()


def skips_a_batch() -> None:
    for step in range(4):
        if step != 2 or WORLD.rank:
            train(1)


def closes() -> None:
    train(3 if WORLD.rank == 0 else 4)
    OPTIMIZER.close()


def finalizes() -> None:
    ends()
    MPI.Finalize()


def goes_on_after_the_error() -> None:
    try:
        ends()
    except RuntimeError:
        OPTIMIZER.close()


def trains_another_model() -> None:
    train(2)
    distributed(perceptron()) if WORLD.rank == 0 else train(1)


def is_late() -> None:
    """Nothing is wrong with a rank that takes its time."""
    for _ in range(2):
        train(1)
        time.sleep(5 if WORLD.rank == 0 else 0)
        backward()
        time.sleep(5 if WORLD.rank else 0)
        OPTIMIZER.step()
    time.sleep(5 if WORLD.rank else 0)
    assert len(set(WORLD.allgather(checksum(named_state(MODEL))))) == 1


CASES: list[Callable[[], None]] = [
    ends,
    ends_after_a_backward_pass,
    raises,
    skips_a_step,
    skips_a_batch,
    closes,
    finalizes,
    goes_on_after_the_error,
    trains_another_model,
    is_late,
]

if __name__ == "__main__":
    next(case for case in CASES if case.__name__.replace("_", " ") == sys.argv[1])()

"""Collectives whose waiting takes no core from who computes: see ``hyparflow.engine.waiting``."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyparflow.engine.waiting import wait
from hyparflow.training.layout import Array


def meet(comm: Any) -> None:
    """Return when all ranks are here."""
    wait(comm.Ibarrier())


def gather_all(comm: Any, value: Any) -> list[Any]:
    """Every rank's value, on every rank."""
    meet(comm)
    found: list[Any] = comm.allgather(value)
    return found


def sum_equal(comm: Any, own: Array) -> Array:
    """The sum over the ranks, the same bits on each: an allreduce may round differently on different ranks."""
    total = np.empty_like(own)
    wait(comm.Ireduce(own, total, root=0))
    wait(comm.Ibcast(total, root=0))
    return total


def any_of(comm: Any, asked: bool) -> bool:
    """Whether any rank asks."""
    return bool(sum_equal(comm, np.array([asked], dtype=np.int64))[0])

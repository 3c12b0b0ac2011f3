"""A PyTorch optimizer that averages the gradients over the ranks before it updates the weights."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES
from hidl_workloads.training.data_parallel.compression import Compression
from hidl_workloads.training.data_parallel.torch_gradients import GradientAverager, broadcast


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    communicator: MPI.Comm | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    compression: Compression = "none",
    average: bool = True,
    accumulate: int = 1,
    share_memory: bool = True,
) -> Any:
    """Return ``optimizer`` itself, which from now on averages the gradients of ``model`` over ``communicator``.

    ::

        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for x, y in batches_of_this_rank:
            optimizer.zero_grad()
            loss(model(x), y).backward()     # sums start while it runs
            optimizer.synchronize()          # only where gradients are read or clipped before the step
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()                 # averages, unless synchronize() has, and updates

    All ranks get rank 0's weights, buffers and optimizer state first. The object stays one of its own class, so
    schedulers, ``state_dict`` and ``param_groups`` are what they were. With ``accumulate=k``, ``step`` comes after k
    backward passes, whose gradients torch adds: divide the loss by k for their mean. The other arguments are those of
    ``GradientAverager``. ``MPI.COMM_WORLD`` is the default communicator. Collective, as is ``close``.

    A step on compressed gradients of which one is not finite raises ``FloatingPointError`` on all ranks and leaves the
    weights as they are; ``zero_grad`` and the next batch may follow.
    """
    world = MPI.COMM_WORLD if communicator is None else communicator
    if isinstance(optimizer, _Distributed):
        raise TypeError("this optimizer averages over the ranks already: wrap it once")
    averager = GradientAverager(
        world,
        model,
        bucket_bytes,
        compression=compression,
        average=average,
        accumulate=accumulate,
        share_memory=share_memory,
    )
    broadcast(world, model)
    state = world.bcast(optimizer.state_dict() if world.rank == 0 else None)
    if world.rank != 0:
        optimizer.load_state_dict(state)
    own = type(optimizer)
    optimizer.__class__ = type(own.__name__, (_Distributed, own), {"__module__": own.__module__})
    optimizer._averager = averager
    optimizer._averaged = False
    # Not a method of ours: a scheduler that was made before puts one of its own in front of it.
    optimizer._averages_before_step = optimizer.register_step_pre_hook(_average_before_step)
    return optimizer


class _Distributed:
    """What an optimizer's class gets in front of its own."""

    _averager: GradientAverager
    _averaged: bool
    _averages_before_step: Any

    def synchronize(self) -> None:
        """Wait until every gradient is the average over the ranks; the next ``step`` does not average again."""
        self._averaged = False
        self._averager.finish()
        self._averaged = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self._averaged = False
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def close(self) -> None:
        """Average no more, and give communicator and buffers back."""
        self._averager.close()
        self._averages_before_step.remove()
        self.__class__ = type(self).__mro__[2]
        del self._averager, self._averaged, self._averages_before_step


def _average_before_step(optimizer: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Average, unless ``synchronize`` has; a closure is averaged each time that it is called instead."""
    closure = keywords.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
    if closure is not None:

        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            optimizer._averager.finish()
            return loss

        return (optimizer,), {"closure": averaged}
    if not optimizer._averaged or optimizer._averager.started:
        optimizer._averager.finish()
    optimizer._averaged = False
    return None

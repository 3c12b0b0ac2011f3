"""A PyTorch optimizer that averages the gradients over the ranks before it updates the weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from mpi4py import MPI
from torch.utils._pytree import tree_map

from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES
from hidl_workloads.training.data_parallel.compression import Compression
from hidl_workloads.training.data_parallel.gpu_path import Buffers, Path
from hidl_workloads.training.data_parallel.torch_gradients import GradientAverager, Statistics, Uneven
from hidl_workloads.training.data_parallel.torch_state import Named, broadcast, refuse_other_parallelism

_AVERAGERS: weakref.WeakSet[GradientAverager] = weakref.WeakSet()


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
    statistics: Statistics = "average",
    gpu_buffers: Buffers = "auto",
) -> Any:
    """Return ``optimizer`` itself, which from now on averages the gradients of ``model`` over ``communicator``.

    ::

        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for x, y in batches_of_this_rank:
            optimizer.zero_grad()
            loss(model(x), y).backward()     # sums run meanwhile; afterwards all gradients are averages
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    All ranks get rank 0's weights, buffers, extra state and optimizer state first. The object stays one of its own
    class, so schedulers, ``state_dict`` and ``param_groups`` are what they were. Parameters that the optimizer holds
    besides the model's are averaged too, also those that ``add_param_group`` adds later. With ``accumulate=k``, the
    gradients of k backward passes are averaged once, after the last one; torch adds them: divide the loss by k for
    their mean. Several optimizers may train one model, with the same options. The other arguments are those of
    ``GradientAverager``. ``MPI.COMM_WORLD`` is the default communicator. Collective, as are each backward pass,
    ``step``, ``add_param_group`` and ``close``.

    A closure is called on all ranks equally often: its loss becomes the mean over the ranks. ``step`` raises
    ``ValueError`` on all ranks if these have other learning rates or other settings, and ``FloatingPointError`` if a
    compressed gradient is not finite; weights stay as they are, and ``zero_grad`` and the next batch may follow.
    """
    world = MPI.COMM_WORLD if communicator is None else communicator
    if isinstance(optimizer, _Distributed):
        raise TypeError("this optimizer already averages over the ranks: wrap it only once")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} never called torch.optim.Optimizer.__init__, so its step runs no hooks: wrap "
            "the optimizer that it steps"
        )
    options = (bucket_bytes, compression, average, accumulate, share_memory, statistics, gpu_buffers)
    held = _held(optimizer, model)
    if world.size > 1:
        refuse_other_parallelism([*model.named_parameters(), *held])
    averager = _averager_of(model, held, world, options)
    if averager is None:
        averager = GradientAverager(
            world,
            model,
            bucket_bytes,
            compression=compression,
            average=average,
            accumulate=accumulate,
            share_memory=share_memory,
            statistics=statistics,
            gpu_buffers=gpu_buffers,
        )
        _AVERAGERS.add(averager)
    broadcast(world, model)
    averager.add(held)
    averager.optimizers.add(optimizer)
    state = world.bcast(tree_map(_on_host, optimizer.state_dict()) if world.rank == 0 else None)
    if world.rank != 0:
        optimizer.load_state_dict(state)
    own = type(optimizer)
    optimizer.__class__ = type(own.__name__, (_Distributed, own), {"__module__": own.__module__})
    optimizer._averager = averager
    # A hook instead of a method, because existing schedulers put their own method in front of it.
    optimizer._averages_before_step = optimizer.register_step_pre_hook(_average_before_step)
    optimizer._notes_weights = optimizer.register_step_post_hook(_note_weights)
    return optimizer


class _Distributed:
    """Methods that precede those of an optimizer's own class."""

    _averager: GradientAverager
    _averages_before_step: Any
    _notes_weights: Any

    @property
    def path(self) -> Path | None:
        """The way of gradients on a GPU to MPI: ``gpu-aware`` or ``staged``, and why; None where there are none."""
        return self._averager.path

    def synchronize(self) -> None:
        """Average what is not averaged yet: an unfinished accumulation, and gradients that were assigned."""
        self._averager.finish()

    def batches(self, data: Iterable[Any], *, uneven: Uneven = "refuse") -> Iterator[Any]:
        """Yield the batches of ``data`` while every rank has one; collective, as is each batch.

        Where a rank has fewer than others, raises ``ValueError`` on all ranks, or with ``uneven="stop"`` leaves the
        rest of the others out.
        """
        return self._averager.batches(data, uneven)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an optimizer that averages over ranks cannot be copied or pickled, since the copy would not average: use "
            "its state_dict(), or copy it before it is wrapped"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        super().zero_grad(set_to_none)  # type: ignore[misc]
        self._averager.forget(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; all ranks get rank 0's values. Collective."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self._averager.add(_held(self, self._averager.model))

    def close(self) -> None:
        """Average no more, and give communicator and buffers back when the model's last optimizer is closed."""
        self._averager.optimizers.discard(self)
        if not self._averager.optimizers:
            self._averager.close()
            _AVERAGERS.discard(self._averager)
        self._averages_before_step.remove()
        self._notes_weights.remove()
        self.__class__ = type(self).__mro__[2]
        del self._averager, self._averages_before_step, self._notes_weights


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _held(optimizer: Any, model: torch.nn.Module) -> list[Named]:
    """Return what ``optimizer`` holds, with the names of ``model`` where they are its parameters."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    return [
        (names.get(id(weight), f"param_groups[{number}]['params'][{position}]"), weight)
        for number, group in enumerate(optimizer.param_groups)
        for position, weight in enumerate(group["params"])
    ]


def _averager_of(
    model: torch.nn.Module, held: list[Named], communicator: MPI.Comm, options: tuple[object, ...]
) -> GradientAverager | None:
    """Return what averages the gradients of ``model`` already; raises ``ValueError`` if it does so otherwise."""
    for averager in _AVERAGERS:
        shared = averager.shares([*model.named_parameters(), *held])
        if averager.model is model and averager.spans(communicator) and averager.options == options:
            return averager
        if shared:
            raise ValueError(
                f"another optimizer already averages the gradient of {shared[0]}: give both the same model, "
                "communicator and options, or close the other one first"
            )
    return None


def _settings(group: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what decides how a group's parameters change."""
    values = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
    plain = (bool, int, float, str, tuple, type(None))
    return [(name, value) for name, value in sorted(values.items()) if isinstance(value, plain)]


@torch._disable_dynamo  # type: ignore[untyped-decorator]  # a compiled step calls it as it is
def _average_before_step(optimizer: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Average what is not yet; after a closure, each time that it is called instead."""
    settings = repr([_settings(group) for group in optimizer.param_groups])
    closure = keywords.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
    if closure is not None:

        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            optimizer._averager.finish(settings)
            if isinstance(loss, torch.Tensor):
                return torch.full_like(loss.detach(), optimizer._averager.mean(loss.item()))
            return loss

        return (optimizer,), {"closure": averaged}
    optimizer._averager.finish(settings)
    return None


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _note_weights(optimizer: Any, *_: Any) -> None:
    optimizer._averager.note_weights()

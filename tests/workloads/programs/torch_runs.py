"""A program's surroundings: one process, or a rank; and the small models that programs of torch_oracle train."""

from __future__ import annotations

import gc
import os
from types import MethodType
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer

WORLD = MPI.COMM_WORLD
PER_RANK = 4
FEATURES = 5


class Run:
    """A program's surroundings: one process with all samples, or a rank with its part of them."""

    def __init__(self, joint: bool) -> None:
        self.joint = joint
        self.seen: list[tuple[str, Any]] = []
        self._random = torch.Generator().manual_seed(1)
        self._optimizers: list[Any] = []
        torch.manual_seed(0 if joint else WORLD.rank)  # other weights and buffers on each rank at the start

    def batch(self, *shape: int, per_rank: int = PER_RANK) -> torch.Tensor:
        """Samples of this shape: all, or this rank's."""
        return self.mine(torch.randn(per_rank * WORLD.size, *(shape or (FEATURES,)), generator=self._random))

    def words(self, most: int) -> torch.Tensor:
        """Numbers below ``most``, three a sample."""
        return self.mine(torch.randint(most, (PER_RANK * WORLD.size, 3), generator=self._random))

    def mine(self, samples: torch.Tensor) -> torch.Tensor:
        return samples if self.joint else samples.chunk(WORLD.size)[WORLD.rank]

    def on_rank_0(self, samples: torch.Tensor) -> torch.Tensor:
        """A view of the samples that rank 0 has."""
        if self.joint:
            return samples.chunk(WORLD.size)[0]
        return samples if WORLD.rank == 0 else samples[:0]

    def wrap(self, optimizer: Any, model: nn.Module, **options: Any) -> Any:
        if self.joint:
            return optimizer
        averager = os.environ.get("ORACLE_AVERAGER")
        if averager == "horovod":
            return by_horovod(optimizer, model, **options)
        if averager == "torch":
            return by_torch(optimizer, model)
        self._optimizers.append(DistributedOptimizer(optimizer, model, WORLD, **{"bucket_bytes": 100} | options))
        return self._optimizers[-1]

    def mean(self, value: Any) -> float:
        return float(value) if self.joint else WORLD.allreduce(float(value)) / WORLD.size

    def see(self, model: nn.Module, *optimizers: Any, **others: Any) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self.seen += [(name, tensor.detach().clone()) for name, tensor in tensors]
        self.seen += [(f"gradient of {name}", _copy(weight.grad)) for name, weight in model.named_parameters()]
        for optimizer in optimizers:
            for key, state in optimizer.state_dict()["state"].items():
                self.seen += [(f"{name} of {key}", _copy(value)) for name, value in state.items()]
            self.seen += [("lr", group["lr"]) for group in optimizer.param_groups]
        self.seen += others.items()

    def close(self) -> None:
        for optimizer in self._optimizers:
            optimizer.close()


def by_horovod(optimizer: Any, model: nn.Module, *, accumulate: int = 1, **_: Any) -> Any:
    """As Horovod's documentation has it; options that it does not have are left out."""
    import horovod.torch as hvd

    if not hvd.is_initialized():
        hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    named = model.named_parameters()
    return hvd.DistributedOptimizer(optimizer, named_parameters=named, backward_passes_per_step=accumulate)


def by_torch(optimizer: Any, model: nn.Module) -> Any:
    """Have every call of ``model`` go through ``DistributedDataParallel`` over MPI, with its default options."""
    import mpi4c10d  # noqa: F401 - registers itself
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("mpi4c10d")
    trained = {id(weight) for weight in model.parameters() if weight.requires_grad}
    if getattr(model.forward, "trained", None) == trained:
        return optimizer  # another optimizer has wrapped it
    if vars(model).pop("forward", None):
        gc.collect()  # the former wrapper's hooks go with it
    vars(model)["forward"] = _Parallel(model, trained)
    return optimizer


class _Parallel:
    """The ``forward`` of a model that goes through ``DistributedDataParallel``; a copy of the model does not."""

    def __init__(self, model: nn.Module, trained: set[int]) -> None:
        self.trained = trained
        self._model, self._parallel = model, nn.parallel.DistributedDataParallel(model)
        self._inside = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self._inside:
            return type(self._model).forward(self._model, *inputs, **named)
        self._inside = True
        try:
            return self._parallel(*inputs, **named)
        finally:
            self._inside = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return MethodType(type(self._model).forward, memo[id(self._model)])


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to_dense().clone()


def perceptron(width: int = FEATURES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def momentum(weights: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=0.01)


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(run: Run, model: nn.Module, optimizer: Any, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, run.batch()).backward()
        optimizer.step()
        run.see(model, optimizer)


def distributed(model: nn.Module, **options: Any) -> Any:
    return DistributedOptimizer(momentum(model.parameters()), model, WORLD, **options)

"""PyTorch's parameters, buffers and extra state: by name, as bytes, and rank 0's for all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _NormBase

from hidl_workloads.training.data_parallel import weights

Named = tuple[str, torch.Tensor]


def broadcast(communicator: MPI.Comm, model: torch.nn.Module, others: Iterable[Named] = ()) -> None:
    """Give every rank the parameters, buffers (persistent or not) and extra state of rank 0's ``model``; collective.

    ``others``: named tensors outside of the model. Raises ``ValueError`` on all ranks, with the names, if ranks have
    different ones.
    """
    named = [*model.named_parameters(), *model.named_buffers(), *others]
    weights.require_equal(
        communicator,
        {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named},
        "all ranks must have the same parameters and buffers, with the same shapes and types",
    )
    for _, tensor in named:
        contiguous = tensor.detach().cpu().contiguous()
        # As bytes, because NumPy has no bfloat16.
        weights.broadcast(communicator, [contiguous.reshape(-1).view(torch.uint8).numpy()])
        tensor.detach().copy_(contiguous)
    for module in model.modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            state = communicator.bcast(module.get_extra_state() if communicator.rank == 0 else None)
            if communicator.rank != 0:
                module.set_extra_state(state)


def modules_beside(model: torch.nn.Module, others: Iterable[Named]) -> list[torch.nn.Module]:
    """Return the modules that compute with ``others``, named tensors outside of ``model``.

    These are the modules that hold one of them, those that hold such a module but not ``model``, and all modules in
    them. Programs give an optimizer parameters, not modules, which are therefore looked for among all live objects.
    """
    wanted = {id(tensor) for _, tensor in others}
    if not wanted:
        return []
    own = {id(module) for module in model.modules()}
    live = [
        each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module) and "_modules" in each.__dict__
    ]
    found: dict[int, torch.nn.Module] = {}
    for root in live:
        inside = list(root.modules())
        if any(id(module) in own for module in inside):
            continue
        if any(id(weight) in wanted for module in inside for weight in module._parameters.values()):
            found |= {id(module): module for module in inside}
    return list(found.values())


def refuse_other_parallelism(named: Sequence[Named]) -> None:
    """Raise ``ValueError`` if ``torch.distributed`` averages or shards one of these parameters.

    Frameworks wrap models after the optimizer was made, and elsewhere, so wrappers are looked for among all live
    objects.
    """
    names = {id(tensor): name for name, tensor in named}
    for name, tensor in named:
        if hasattr(tensor, "device_mesh"):  # a DTensor, which is distributed over the ranks
            raise ValueError(
                f"{name} is sharded over ranks: DistributedOptimizer requires whole parameters on all ranks"
            )
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = (torch.nn.parallel.DistributedDataParallel, *([fsdp.FullyShardedDataParallel] if fsdp else []))
    for each in gc.get_objects():
        if not issubclass(type(each), kinds) or "_modules" not in each.__dict__ or each.process_group.size() == 1:
            continue
        shared = next((names[id(weight)] for weight in each.parameters() if id(weight) in names), None)
        if shared is not None:
            raise ValueError(
                f"{type(each).__name__} already averages the gradient of {shared}: omit DistributedOptimizer, or, "
                "if a framework such as accelerate has wrapped the model, call "
                "hidl_workloads.world.hide_launcher() before the framework starts"
            )


def own_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the persistent buffers of ``model``, except the statistics of normalization layers.

    Buffers that are not persistent hold what a rank can compute again, such as tables for the longest input so far.
    """
    return [
        buffer
        for module in model.modules()
        if module._buffers and not isinstance(module, _NormBase)
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set and buffer.layout is torch.strided
    ]


def has_unknown(model: torch.nn.Module, known: Container[int]) -> bool:
    """Return True if a parameter that requires a gradient is not among ``known``, by its ``id``.

    It takes a tenth of the time of ``named_parameters``, and is called in each step.
    """
    if type(model).named_parameters is not torch.nn.Module.named_parameters:
        return any(weight.requires_grad and id(weight) not in known for _, weight in model.named_parameters())
    modules, seen = [model], {id(model)}
    for module in modules:  # which grows meanwhile
        for weight in module._parameters.values():
            if weight is not None and weight.requires_grad and id(weight) not in known:
                return True
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return False


def named_weights(model: torch.nn.Module) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield every trainable parameter's name and value on the host, in the model's order."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name, weight.detach().cpu().numpy()


def named_state(model: torch.nn.Module) -> Iterable[tuple[str, NDArray[np.uint8]]]:
    """Yield the name and the bytes of every parameter and buffer, frozen or not, persistent or not."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, bytes_of(tensor)


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor of any type; NumPy has no bfloat16."""
    array: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array

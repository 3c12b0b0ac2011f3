"""The state of a training with PyTorch, as checkpoints hold it.

Ranks that have equal weights share them and the optimizer's state; ranks with shards keep their own. Buffers, such as
the moving statistics of batch normalisation, and the random generators are always a rank's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.utils._pytree import tree_map


def is_sharded(network: torch.nn.Module) -> bool:
    """Return whether each rank has only a shard of the weights, or a stage of the network."""
    return getattr(network, "is_stage", False) or any(hasattr(weight, "device_mesh") for weight in network.parameters())


def write_shared(network: torch.nn.Module, optimizer: torch.optim.Optimizer, file: BinaryIO) -> None:
    """Write what is equal on all ranks."""
    torch.save({} if is_sharded(network) else _trained(network, optimizer), file)


def write_own(network: torch.nn.Module, optimizer: torch.optim.Optimizer, file: BinaryIO) -> None:
    """Write what only this rank has."""
    state: dict[str, Any] = _trained(network, optimizer) if is_sharded(network) else {}
    state["buffers"] = dict(network.named_buffers())
    state["random"] = torch.get_rng_state()
    device = next(network.parameters()).device
    if device.type == "cuda":
        state["random_on_gpu"] = torch.cuda.get_rng_state(device)
    torch.save(state, file)


def restore(network: torch.nn.Module, optimizer: torch.optim.Optimizer, shared: Path, own: Path) -> None:
    """Load the state into a network and an optimizer that have just been made."""
    state = {**_load(shared), **_load(own)}
    with torch.no_grad():
        for name, weight in network.named_parameters():
            _local(weight).copy_(state["weights"][name])
        for name, buffer in network.named_buffers():
            buffer.copy_(state["buffers"][name])
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, of_weight in state["optimizer"]["state"].items():
        state["optimizer"]["state"][number] = {
            key: _like(parameters[number], value) for key, value in of_weight.items()
        }
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    device = next(network.parameters()).device
    if device.type == "cuda" and "random_on_gpu" in state:
        torch.cuda.set_rng_state(state["random_on_gpu"], device)


def _trained(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    with torch.no_grad():
        weights = {name: _local(weight).detach() for name, weight in network.named_parameters()}
        return {"weights": weights, "optimizer": tree_map(_local, optimizer.state_dict())}


def _local(value: Any) -> Any:
    """Return this rank's shard of a sharded tensor, and anything else as it is."""
    return value.to_local() if hasattr(value, "device_mesh") else value


def _like(weight: torch.Tensor, value: Any) -> Any:
    """Return a part of the optimizer's state as a sharded tensor if its weight is one."""
    if not hasattr(weight, "device_mesh") or not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        value.to(weight.to_local().device),
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def _load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state

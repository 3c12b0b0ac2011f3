"""Batch normalization by the mean and the variance of all ranks' batches together."""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI
from torch.nn.modules.batchnorm import _BatchNorm

_KINDS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def synchronize_batch_norm(model: torch.nn.Module, communicator: MPI.Comm | None = None) -> torch.nn.Module:
    """Return ``model``, whose ``BatchNorm`` layers normalize over the batches of all ranks from now on.

    New layers take the parameters, buffers and names of the old ones, so the optimizer may be made before or after; a
    ``model`` that is such a layer itself is not changed: use what is returned. In training, each call of these layers
    is collective, and ranks may have batches of different sizes. Copies of the model, and what is saved and loaded,
    normalize alone. ``MPI.COMM_WORLD`` is the default communicator.
    """
    world = MPI.COMM_WORLD if communicator is None else communicator
    if type(model) in _KINDS:
        return _synchronized(model, world)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) in _KINDS:
                setattr(module, name, _synchronized(child, world))
    return model


class SynchronizedBatchNorm(_BatchNorm):  # type: ignore[misc]
    """A ``BatchNorm`` layer of inputs of any shape (samples, channels, ...), which normalizes over all ranks."""

    communicator: MPI.Comm | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize; in training (and where there are no running statistics), by all ranks' batches."""
        if self.communicator is None or not (self.training or self.running_mean is None):
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = (
            input if input.dtype == torch.float64 else input.float()
        )  # MPI has no bfloat16, and float16 cannot hold such sums
        own = wide.new_full((1,), input.numel() // input.shape[1])
        sums = _Sum.apply(torch.cat([wide.sum(axes), own]), self.communicator)
        count = sums[-1].item()
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(axes), self.communicator) / count
        if self.training and self.running_mean is not None:
            self._remember(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        normalized = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            normalized = normalized * self.weight.view(shape) + self.bias.view(shape)
        return normalized.to(input.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy gets: all but the communicator."""
        return {name: value for name, value in self.__dict__.items() if name != "communicator"}

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected samples, channels and any further axes, got {input.dim()} axes")

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
        self.running_var.lerp_(variance.to(self.running_var.dtype), part)


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """The sum of a tensor over the ranks; so is its gradient's."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, communicator: MPI.Comm) -> torch.Tensor:
        ctx.communicator = communicator
        total = tensor.detach().clone(memory_format=torch.contiguous_format).cpu()
        communicator.Allreduce(MPI.IN_PLACE, total.numpy(), MPI.SUM)
        return total.to(tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Sum.apply(gradient, ctx.communicator), None


def _synchronized(layer: torch.nn.Module, communicator: MPI.Comm) -> SynchronizedBatchNorm:
    replacement = SynchronizedBatchNorm.__new__(SynchronizedBatchNorm)
    replacement.__dict__.update(layer.__dict__)
    replacement.communicator = communicator
    return replacement

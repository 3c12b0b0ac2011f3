"""Data-parallel PyTorch: gradients are averaged in buckets while the backward pass goes on.

Parameters and gradients are float32 or float64 on the CPU (autocast to bfloat16 keeps them so); a gradient is a view
into its bucket, and the bucket's memory is what MPI sends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hidl_workloads.data_parallel import buckets


class GradientAverage:
    """Averages the gradients of ``model`` over all ranks during ``backward``; call ``finish`` before the optimizer.

    ``bucket_bytes``: gradients are sent together up to that many bytes, in the order in which they become ready (the
    reverse of the parameters' order). A parameter that gets no gradient counts as zero.
    """

    def __init__(self, model: nn.Module, world: Any, *, bucket_bytes: int) -> None:
        self._reducer = buckets.Reducer(world)
        self._scale = 1.0 / world.size
        parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        runs = buckets.split([p.numel() * p.element_size() for p in parameters], bucket_bytes)
        self._buckets = [_Bucket([parameters[i] for i in run]) for run in runs]
        self._next = 0
        if world.size > 1:
            for bucket in self._buckets:
                for parameter in bucket.views:
                    parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def _hook(self, bucket: _Bucket) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            bucket.take(parameter, self._scale)
            self._start_full_ones()
            self._reducer.progress()

        return ready

    def _start_full_ones(self, *, all_of_them: bool = False) -> None:
        """Start buckets in their order, which is the same on all ranks, as far as they are full."""
        while self._next < len(self._buckets) and (all_of_them or not self._buckets[self._next].missing):
            self._reducer.start(self._buckets[self._next].flat.numpy())
            self._next += 1

    def finish(self) -> None:
        """Wait until every gradient is the average of all ranks'."""
        if self._scale == 1.0:
            return
        for bucket in self._buckets[self._next :]:
            bucket.fill_missing()
        self._start_full_ones(all_of_them=True)
        self._reducer.finish()
        self._next = 0
        for bucket in self._buckets:
            bucket.reset()


class _Bucket:
    """A flat buffer, and which part of it is whose gradient."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        parts = self.flat.split([p.numel() for p in parameters])
        self.views = {p: part.view_as(p) for p, part in zip(parameters, parts, strict=True)}
        self.missing = set(parameters)

    def take(self, parameter: torch.Tensor, scale: float) -> None:
        """Move a gradient that is ready into the buffer, scaled, and let the parameter's gradient be that place."""
        view = self.views[parameter]  # type: ignore[index]
        torch.mul(parameter.grad, scale, out=view)
        parameter.grad = view
        self.missing.discard(parameter)  # type: ignore[arg-type]

    def fill_missing(self) -> None:
        """Zero the place of every parameter that got no gradient."""
        for parameter in self.missing:
            self.views[parameter].zero_()
            parameter.grad = self.views[parameter]

    def reset(self) -> None:
        """Expect the next step's gradients."""
        self.missing = set(self.views)


def broadcast(model: nn.Module, world: Any) -> None:
    """Give every rank rank 0's parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    buckets.broadcast(world, (tensor.detach().view(-1).numpy() for tensor in tensors))


def checksum(model: nn.Module) -> str:
    """The checksum of all parameters that are trained."""
    return buckets.checksum((name, p.detach().numpy()) for name, p in model.named_parameters() if p.requires_grad)

"""What travels of PyTorch's gradients: flat buffers with their places, and the rows of sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request
from hidl_workloads.training.data_parallel.buckets import Bucket
from hidl_workloads.training.data_parallel.compression import Halves
from hidl_workloads.training.data_parallel.torch_lanes import Lane
from hidl_workloads.training.data_parallel.torch_state import Named

LaneOf = Callable[[torch.Tensor, NDArray[Any], NDArray[Any]], Lane]
"""Makes the way of a bucket: on the device, its buffer on the host, and the presence at the end of that."""


class Group:
    """Buffers that were planned together, and their sums."""

    def __init__(self, allreduce: Allreduce, fillings: Sequence[Filling]) -> None:
        self.fillings = fillings
        self.progress = allreduce.progress
        self._allreduce = allreduce
        self._next = 0

    def take(self, number: int, position: int) -> None:
        """Put a gradient into its place in a buffer, and start what is full."""
        filling = self.fillings[number]
        if number < self._next:
            raise RuntimeError(
                f"the gradient of {filling.names[position]} changed after its sum had begun: nested backward passes "
                "(checkpoint with use_reentrant=True) share this parameter; use use_reentrant=False"
            )
        filling.take(position)
        self._start_full()

    def take_frozen(self) -> None:
        """Wait for no gradient of parameters that require none."""
        for filling in self.fillings:
            for position, weight in enumerate(filling.weights):
                if not weight.requires_grad:
                    filling.take(position)
        self._start_full()

    def start_rest(self, failed: bool = False) -> None:
        """Start all sums that are not started; of a ``failed`` pass, with whatever is there."""
        for filling in self.fillings[self._next :]:
            for position in () if failed else sorted(filling.missing):
                filling.take(position)
            filling.missing.clear()
        self._start_full()

    def finish(self, wait: Callable[[Request], object], failed: bool = False) -> None:
        """Wait for the sums, and let the parameters have them; see ``Allreduce.finish``."""
        self._allreduce.complete(wait)
        try:
            self._allreduce.finish()
        finally:
            self._next = 0
            for filling in self.fillings:
                filling.missing = set(range(len(filling.weights)))
                if filling.lane is not None:
                    filling.lane.finish()
                if not failed:
                    filling.deliver()

    def close(self) -> None:
        """Give the communicator and the buffers back."""
        for filling in self.fillings:
            if filling.lane is not None:
                filling.lane.close()
        self.fillings = []
        self._allreduce.close()

    def _start_full(self) -> None:
        while self._next < len(self.fillings) and not self.fillings[self._next].missing:
            filling = self.fillings[self._next]
            self._allreduce.start(filling.buffer, None if filling.lane is None else filling.lane.steps())
            self._next += 1


@dataclass
class Filling:
    """A flat buffer, the parameters whose gradients it holds, and their views of it.

    ``presence`` is the end of the buffer: for each parameter, how many ranks have a gradient, times the share.
    ``missing`` are the positions that are not filled yet. Where the parameters are on a GPU, so are the views, and
    ``lane`` brings their sums into them; ``buffer`` is the host's part of it.
    """

    buffer: NDArray[Any]
    presence: NDArray[Any]
    names: Sequence[str]
    weights: Sequence[torch.Tensor]
    views: Sequence[torch.Tensor]
    missing: set[int]
    averages: bool
    lane: Lane | None = None

    def foreign(self) -> list[str]:
        """Return the names of the parameters whose gradient this buffer does not hold."""
        members = zip(self.names, self.weights, self.views, strict=True)
        return [name for name, weight, view in members if weight.grad is not None and weight.grad is not view]

    def take(self, position: int) -> None:
        """Put one gradient into its place, where it is not there already; none is zero."""
        weight, view = self.weights[position], self.views[position]
        grad = weight.grad
        if grad is None:
            view.zero_()
        elif grad is not view:
            self._copy(grad, position)
        elif not self.averages:
            raise RuntimeError(
                "a gradient that is summed over the ranks (average=False) was not cleared: its sum would be summed "
                "again; call zero_grad(set_to_none=True) before the backward pass"
            )
        if self.lane is not None:
            self.lane.touch()
        self.presence[position] = grad is not None
        self.missing.discard(position)

    def deliver(self) -> None:
        """Let each parameter have its average; None where no rank has a gradient."""
        for weight, view, present in zip(self.weights, self.views, self.presence, strict=True):
            if not present:
                weight.grad = None
            elif weight.grad is not view:
                weight.grad = view

    def _copy(self, grad: torch.Tensor, position: int) -> None:
        name = self.names[position]
        if grad.layout != torch.strided:
            raise TypeError(f"the gradient of {name} is sparse, which only embeddings of the model may be")
        if grad.requires_grad:
            raise RuntimeError(
                f"the gradient of {name} is part of a graph (backward with create_graph=True), which a sum over ranks "
                "cannot be: use torch.autograd.grad(..., create_graph=True) for the inner derivative"
            )
        self.views[position].copy_(grad)
        self.weights[position].grad = self.views[position]


@dataclass
class Sparse:
    """A parameter whose gradient is sparse: ranks exchange the rows that they have."""

    name: str
    weight: torch.Tensor
    delivered: torch.Tensor | None = None

    def is_foreign(self) -> bool:
        """Whether a gradient is there that was not averaged."""
        return self.weight.grad is not None and self.weight.grad is not self.delivered

    def average(self, communicator: MPI.Comm, averages: bool) -> None:
        """Bring the gradient to the average, or the sum, over the ranks; collective."""
        own = None
        if self.weight.grad is not None:
            grad = self.weight.grad.coalesce()
            own = grad.indices().cpu().numpy(), grad.values().cpu().numpy()
        everywhere = [rows for rows in communicator.allgather(own) if rows is not None]
        if not everywhere:
            return
        share = 1 / communicator.size if averages else 1.0
        indices = torch.from_numpy(np.concatenate([rows for rows, _ in everywhere], 1))
        values = torch.from_numpy(np.concatenate([values for _, values in everywhere])) * share
        total = torch.sparse_coo_tensor(indices, values, self.weight.shape, check_invariants=True).coalesce()
        self.weight.grad = total.to(self.weight.device)
        self.delivered = self.weight.grad


def filling_of(
    allreduce: Allreduce, bucket: Bucket, named: Sequence[Named], averages: bool, lane_of: LaneOf | None = None
) -> Filling:
    """Return the empty buffer of ``bucket``; ``lane_of`` makes its way if the parameters are on a GPU; collective."""
    buffer = allreduce.buffer(bucket.size, bucket.dtype)
    presence = buffer[bucket.presence :]
    names = [named[index][0] for index in bucket.members]
    members = [named[index][1] for index in bucket.members]
    flat, lane = torch.from_numpy(buffer), None
    if lane_of is not None:
        flat = torch.zeros(bucket.presence, dtype=members[0].dtype, device=members[0].device)
        lane = lane_of(flat, buffer, presence)
    # A gradient has its parameter's strides (think of channels_last): a view with others would be copied slowly.
    views = [
        flat.as_strided(weight.shape, weight.stride(), offset)
        for weight, offset in zip(members, bucket.offsets, strict=True)
    ]
    return Filling(buffer, presence, names, members, views, set(range(len(members))), averages, lane)


def torch_halves(name: str) -> Halves:
    """Return ``float16`` or ``bfloat16`` as torch converts them, with the processor's vector instructions."""
    kind = getattr(torch, name)

    def tensor(bits: NDArray[np.uint16]) -> torch.Tensor:
        return torch.from_numpy(bits.view(np.int16)).view(kind)

    def encode(source: NDArray[Any], target: NDArray[Any]) -> None:
        tensor(target).copy_(torch.from_numpy(source))

    def decode(source: NDArray[Any], target: NDArray[Any]) -> None:
        torch.from_numpy(target).copy_(tensor(source))

    return Halves(name, encode, decode)

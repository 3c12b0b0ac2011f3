"""Flat buffers in which PyTorch's gradients are summed, and the rows of sparse gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch.utils.weak import TensorWeakRef

from hidl_workloads.training.data_parallel.allreduce import Allreduce, Request
from hidl_workloads.training.data_parallel.buckets import Bucket
from hidl_workloads.training.data_parallel.compression import Halves
from hidl_workloads.training.data_parallel.torch_devices import is_host
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
        """Copy a gradient into its buffer, and start the sums of full buffers.

        A gradient that changes after its sum has begun is summed again at the end of the pass: see ``changed``.
        """
        if number >= self._next:
            self.fillings[number].take(position)
            self._start_full()

    def take_frozen(self) -> None:
        """Copy what parameters have that require no gradient: none will come."""
        for filling in self.fillings:
            for position, weight in enumerate(filling.weights):
                if not weight.requires_grad:
                    filling.take(position)
        self._start_full()

    def take_rest(self) -> None:
        """Copy all gradients that are not copied yet, and start all sums."""
        for filling in self.fillings[self._next :]:
            for position in sorted(filling.missing):
                filling.take(position)
            self._start_full()

    def fill(self) -> None:
        """Start all sums, of a failed pass, with what the buffers hold."""
        for filling in self.fillings[self._next :]:
            filling.missing.clear()
            if filling.lane is not None:
                filling.lane.touch()  # the averages of the last pass may not be copied out of it yet
        self._start_full()

    def finish(self, wait: Callable[[Request], object]) -> None:
        """Wait for the sums; see ``Allreduce.finish``."""
        self._allreduce.complete(wait)
        try:
            self._allreduce.finish()
        finally:
            self._next = 0
            for filling in self.fillings:
                filling.missing = set(range(len(filling.weights)))
                filling.finish()

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
            self._allreduce.start(filling.buffer, filling.steps())
            self._next += 1


class Snapshot:
    """A gradient at some time, to notice that another one, other memory or other values are in its place.

    A reference does not keep the gradient: programs that clear gradients want their memory back.
    """

    def __init__(self, grad: torch.Tensor) -> None:
        self._grad = TensorWeakRef(grad)
        self._memory = _memory_of(grad)
        self._version = grad._version

    def is_of(self, grad: torch.Tensor | None) -> bool:
        """Return True if ``grad`` is the same object with the same memory."""
        return grad is not None and self._grad() is grad and self._memory == _memory_of(grad)

    def is_unchanged(self, grad: torch.Tensor | None) -> bool:
        """Return True if nothing was written to it either."""
        return grad is not None and self.is_of(grad) and bool(self._version == grad._version)


@dataclass
class Filling:
    """A flat buffer, the parameters whose gradients are summed in it, and their places.

    Gradients are copied into the buffer and their sums out of it: what the user sees are tensors of the user's own,
    of any memory, which the averager only reads and writes when ``take`` and ``deliver`` are called.

    ``presence`` belongs to the end of the buffer: for each parameter, how many ranks have a gradient, times the share.
    ``missing`` are the positions that are not filled yet. Where the parameters are on a GPU, so are the views, and
    ``lane`` brings their sums into them; ``buffer`` is the host's part of it. On the host, ``allreduce`` reads the
    gradients and writes them, and the views tell the places alone. ``taken`` and ``delivered`` are the gradients as
    they were when they were copied last.
    """

    allreduce: Allreduce
    buffer: NDArray[Any]
    bucket: Bucket
    presence: NDArray[Any]
    names: Sequence[str]
    weights: Sequence[torch.Tensor]
    views: Sequence[torch.Tensor]
    averages: bool
    lane: Lane | None = None
    missing: set[int] = field(init=False)
    taken: list[Snapshot | None] = field(init=False)
    delivered: list[Snapshot | None] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(range(len(self.weights)))
        self.taken = [None] * len(self.weights)
        self.forget()

    def forget(self) -> None:
        """Take no gradient for one that was delivered: they were cleared."""
        self.delivered = [None] * len(self.weights)

    def foreign(self) -> list[str]:
        """Return the names of the parameters whose gradient was not delivered."""
        members = zip(self.names, self.weights, self.delivered, strict=True)
        return [
            name
            for name, weight, delivered in members
            if weight.grad is not None and not (delivered and delivered.is_of(weight.grad))
        ]

    def replaced(self) -> list[str]:
        """Return the names of the parameters that have another gradient than was delivered."""
        members = zip(self.names, self.weights, self.delivered, strict=True)
        return [
            name
            for name, weight, delivered in members
            if delivered and weight.grad is not None and not delivered.is_of(weight.grad)
        ]

    def rewritten(self) -> Iterator[torch.Tensor]:
        """Yield the gradients that were delivered and then changed in place, such as clipped ones."""
        for weight, delivered in zip(self.weights, self.delivered, strict=True):
            if delivered and delivered.is_of(weight.grad) and not delivered.is_unchanged(weight.grad):
                yield weight.grad

    def changed(self) -> bool:
        """Return True if a gradient is no longer what ``take`` copied: its sum is not that of the gradients."""
        return any(
            weight.grad is not None if taken is None else not taken.is_unchanged(weight.grad)
            for weight, taken in zip(self.weights, self.taken, strict=True)
        )

    def take(self, position: int) -> None:
        """Copy one gradient into its place; none is zero."""
        view, delivered = self.views[position], self.delivered[position]
        grad = self.weights[position].grad
        if grad is not None:
            self._check(grad, self.names[position], view)
            if delivered and delivered.is_of(grad) and not self.averages:
                raise RuntimeError(
                    "a gradient that is summed over the ranks (average=False) was not cleared: its sum would be summed "
                    "again; call zero_grad(set_to_none=True) before the backward pass"
                )
        self.taken[position] = None if grad is None else Snapshot(grad)
        if self.lane is None:
            addend = torch.zeros(view.numel(), dtype=view.dtype) if grad is None else _flat(grad, view)
            self.allreduce.place(self.buffer, self.bucket.offsets[position], addend.numpy())
        else:
            view.zero_() if grad is None else view.copy_(grad)
            self.lane.touch()
        self.presence[position] = grad is not None
        self.missing.discard(position)

    def deliver(self) -> None:
        """Write the averages into the gradients; None where no rank has a gradient."""
        members = zip(self.weights, self.views, self.presence, strict=True)
        for position, (weight, view, present) in enumerate(members):
            if not present:
                weight.grad, self.delivered[position] = None, None
                continue
            if weight.grad is None or 0 in weight.grad.stride():  # an expanded tensor cannot be written to
                weight.grad = torch.empty_like(weight.detach())
            if self.lane is None:
                self._collect(weight.grad, view, self.bucket.offsets[position])
            else:
                weight.grad.copy_(view)
            self.delivered[position] = Snapshot(weight.grad)

    def steps(self) -> Iterator[Request]:
        """Begin to sum the buffer, which is full; return the requests."""
        if self.lane is not None:
            return self.lane.steps()
        self.allreduce.place(self.buffer, self.bucket.presence, self.presence)
        return self.allreduce.placed_steps(self.buffer)

    def finish(self) -> None:
        """Take what ranks have gradients from the sum, which is complete."""
        if self.lane is not None:
            self.lane.finish()
        else:
            self.allreduce.collect(self.buffer, self.bucket.presence, self.presence)

    def _collect(self, grad: torch.Tensor, view: torch.Tensor, begin: int) -> None:
        if _is_like(grad, view):
            self.allreduce.collect(self.buffer, begin, _flat(grad, view).numpy())
            return
        result = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype)
        self.allreduce.collect(self.buffer, begin, _flat(result, view).numpy())
        grad.copy_(result)

    @staticmethod
    def _check(grad: torch.Tensor, name: str, view: torch.Tensor) -> None:
        if grad.layout != torch.strided:
            raise TypeError(f"the gradient of {name} is sparse, which only embeddings of the model may be")
        if grad.requires_grad:
            raise RuntimeError(
                f"the gradient of {name} is part of a graph (backward with create_graph=True), which a sum over ranks "
                "cannot be: use torch.autograd.grad(..., create_graph=True) for the inner derivative"
            )
        if grad.dtype != view.dtype:
            raise TypeError(
                f"the gradient of {name} is {grad.dtype}, but {view.dtype} when the optimizer was wrapped: change the "
                "model's type before"
            )


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
        """Bring the gradient to the average, or the sum, over the ranks; collective.

        It becomes dense if it is dense on any rank, as that of an embedding whose weight is used elsewhere too.
        """
        own = None
        if self.weight.grad is not None:
            is_dense = self.weight.grad.layout == torch.strided
            grad = (self.weight.grad.to_sparse(1) if is_dense else self.weight.grad).coalesce()
            own = grad.indices().cpu().numpy(), grad.values().cpu().numpy(), is_dense
        everywhere = [rows for rows in communicator.allgather(own) if rows is not None]
        if not everywhere:
            return
        share = 1 / communicator.size if averages else 1.0
        indices = torch.from_numpy(np.concatenate([rows for rows, _, _ in everywhere], 1))
        values = torch.from_numpy(np.concatenate([values for _, values, _ in everywhere])) * share
        total = torch.sparse_coo_tensor(indices, values, self.weight.shape, check_invariants=True).coalesce()
        if any(is_dense for _, _, is_dense in everywhere):
            total = total.to_dense()
        self.weight.grad = total.to(self.weight.device)
        self.delivered = self.weight.grad


def filling_of(
    allreduce: Allreduce,
    bucket: Bucket,
    named: Sequence[Named],
    layouts: Sequence[tuple[int, ...]],
    *,
    averages: bool,
    lane_of: LaneOf | None = None,
) -> Filling:
    """Return the empty buffer of ``bucket``; ``lane_of`` makes its way if the parameters are on a GPU; collective.

    ``layouts``: for each of the ``named``, the strides of its place, the same on all ranks.
    """
    buffer = allreduce.buffer(bucket.size, bucket.dtype)
    names = [named[index][0] for index in bucket.members]
    members = [named[index][1] for index in bucket.members]
    flat, lane, presence = torch.from_numpy(buffer), None, np.zeros(len(members), bucket.dtype)
    if lane_of is not None:
        presence = buffer[bucket.presence :]
        flat = torch.zeros(bucket.presence, dtype=members[0].dtype, device=members[0].device)
        lane = lane_of(flat, buffer, presence)
    views = [
        flat.as_strided(named[index][1].shape, layouts[index], offset)
        for index, offset in zip(bucket.members, bucket.offsets, strict=True)
    ]
    return Filling(allreduce, buffer, bucket, presence, names, members, views, averages, lane)


def layout_of(weight: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of memory without gaps that is ordered as that of ``weight``, and fast to copy from it."""
    return tuple(torch.empty_like(weight.detach(), device="meta").stride())


def _is_like(grad: torch.Tensor, view: torch.Tensor) -> bool:
    """Return True if the elements of both have the same order in memory, that of the host."""
    strides = zip(grad.shape, grad.stride(), view.stride(), strict=True)
    return is_host(grad.device) and all(size == 1 or one == other for size, one, other in strides)


def _flat(grad: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return the elements of ``grad`` in the order of ``view``: itself, or a copy of it."""
    if not _is_like(grad, view):
        grad = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype).copy_(grad)
    return grad.detach().as_strided((grad.numel(),), (1,))


def _memory_of(grad: torch.Tensor) -> int:
    """Return the address of a gradient, or 0 where it is of a kind that has none."""
    try:
        return int(grad.data_ptr())
    except RuntimeError:
        return 0


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
